"""`torch.compile` left out: the model runs as written, and the estimate says so."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_WARNING = "`torch.compile` was left out: the estimate is for the model as written, compiled code often needs less"


class Compiled(torch.nn.Module):
    """Wraps a module as `torch.compile` does: names in its state begin with `_orig_mod.`."""

    def __init__(self, module: torch.nn.Module, called: Callable[[], None]) -> None:
        super().__init__()
        self._orig_mod = module
        self.__dict__["_called"] = called

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._orig_mod, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own result."""
        self._called()
        return self._orig_mod(*args, **kwargs)


def install(recorder: Any) -> None:
    """Replace the entries to the compiler. What is compiled and never called, as libraries do, is not told."""

    def called() -> None:
        recorder.warn(_WARNING)

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return compile_
        if isinstance(model, torch.nn.Module):
            return Compiled(model, called)

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            called()
            return model(*args, **kwargs)

        return call

    def compile_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        recorder.warn(_WARNING)

    nothing: Callable[[], None] = lambda: None  # noqa: E731 - one name for two entries
    torch.compile = compile_
    torch.nn.Module.compile = compile_module
    torch.compiler.cudagraph_mark_step_begin = nothing
    torch.compiler.reset = nothing
