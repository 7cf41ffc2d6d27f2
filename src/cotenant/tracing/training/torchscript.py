"""TorchScript left out: a script's functions and modules run as written, as with `PYTORCH_JIT=0`; it is told.

Its interpreter passes operators to a mode in pieces of its own, and autograd nodes that it makes have no stream.
Source: torch/jit/_state.py, `EnabledProxy`; torch/jit/_script.py; torch/jit/_trace.py.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing import script_location

_WARNING = "TorchScript was left out: the estimate is for the model as written, scripted code can need more or less"


def install(recorder: Any) -> None:
    """Replace what makes, saves and freezes scripted code."""
    jit: Any = torch.jit
    for name in ("script", "trace", "trace_module"):
        setattr(jit, name, _left_out(getattr(jit, name), recorder))
    jit.script_method = lambda function: function
    for name in ("freeze", "optimize_for_inference"):
        setattr(jit, name, lambda module, *_, **__: module)
    jit.save = _save
    jit.ScriptModule = _ScriptModule


class _ScriptModule(torch.nn.Module):
    """Stands in for `torch.jit.ScriptModule` where a script derives from it."""

    def save(self, *_: object, **__: object) -> None:
        """A trace keeps no files."""


def _left_out(original: Callable[..., Any], recorder: Any) -> Callable[..., Any]:
    def call(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if not script_location.is_user_file(sys._getframe(1).f_code.co_filename):
            if original.__name__ == "script":
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1  # names are looked up where it is called
            return original(obj, *args, **kwargs)  # of a library, such as PyTorch's own rules of differentiation
        recorder.warn(_WARNING)
        if isinstance(obj, (types.FunctionType, torch.nn.Module)) and not hasattr(obj, "save"):
            obj.__dict__["save"] = _save
        return obj

    return call


def _save(*_: object, **__: object) -> None:
    """A trace keeps no files."""
