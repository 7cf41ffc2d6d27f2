"""`torch.compile` left out: the model runs as written, and the estimate says so, and which way it errs.

A compiled model keeps less for its backward pass where elementwise results are computed again, and holds fewer results
in between. A compiled optimizer step holds none but what it writes. CUDA graphs keep a pool of their own: that is more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

_WARNING = "`torch.compile` was left out: the estimate is for the model as written, compiled code often needs less"
_STEP_WARNING = (
    "a compiled optimizer step was traced as written, with results in between that compiled code does not hold: "
    "where the peak is in the step, it is an upper bound"
)
_CUDA_GRAPHS_WARNING = "`torch.compile` with CUDA graphs keeps their memory in a pool of its own, which is not counted"


class UncompiledModule(torch.nn.Module):
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

    def called(options: dict[str, Any], *, steps: bool = False, only: bool = False) -> None:
        if steps:
            recorder.warn(_STEP_WARNING)
        if not only:
            recorder.warn(_WARNING)
        if _has_graphs(options):
            recorder.warn(_CUDA_GRAPHS_WARNING)

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile_, **options)
        if isinstance(model, torch.nn.Module):
            return UncompiledModule(model, functools.partial(called, options))

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            before, within = recorder.steps, recorder.phase == "step" or _is_step(model)
            try:
                return model(*args, **kwargs)
            finally:
                called(options, steps=within or recorder.steps > before, only=within)

        return call

    def compile_module(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        called(kwargs)

    nothing: Callable[[], None] = lambda: None  # noqa: E731 - one name for two entries
    torch.compile = compile_
    torch.nn.Module.compile = compile_module
    torch.compiler.cudagraph_mark_step_begin = nothing
    torch.compiler.reset = nothing


def _is_step(function: Any) -> bool:
    return isinstance(getattr(function, "__self__", None), torch.optim.Optimizer)


def _has_graphs(options: dict[str, Any]) -> bool:
    """Whether calls are captured. Source: torch/_inductor/__init__.py, `list_mode_options`."""
    more = options.get("options") or {}
    return options.get("mode") in ("reduce-overhead", "max-autotune") or bool(more.get("triton.cudagraphs"))
