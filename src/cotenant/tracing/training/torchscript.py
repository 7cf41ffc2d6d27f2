"""TorchScript is ignored: scripted functions and modules run as written, as with `PYTORCH_JIT=0`; a warning says so.

Its interpreter hands operators to a dispatch mode in fused pieces, and the autograd nodes that it makes have no stream.
Source: torch/jit/_state.py, `EnabledProxy`; torch/jit/_script.py; torch/jit/_trace.py.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.patches.graph_summaries import run_once
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase, patch_attributes

_WARNING = "TorchScript was ignored: the estimate is for the eager model; scripted code can need more or less"


def patches(context: PatchContext) -> list[Patch]:
    """Functions that make, save and freeze scripted code."""
    common: dict[str, Any] = {
        "phase": Phase.TRAINING,
        "reason": "TorchScript's interpreter hides operators from a dispatch mode.",
        "source": "torch/jit/_script.py, `script`",
    }
    eager = functools.partial(_run_eagerly, context.recorder)
    return [
        *patch_attributes("torch.jit", dict.fromkeys(("script", "trace", "trace_module"), eager), wraps=True, **common),
        *patch_attributes("torch.jit", dict.fromkeys(("freeze", "optimize_for_inference"), _unchanged), **common),
        *patch_attributes(
            "torch.jit", {"script_method": _unchanged, "save": _save, "ScriptModule": _EagerModule}, **common
        ),
    ]


class _EagerModule(torch.nn.Module):
    """In place of `torch.jit.ScriptModule` where a script derives from it."""

    def save(self, *_: object, **__: object) -> None:
        """Nothing: a trace writes no files."""


def _run_eagerly(recorder: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def call(obj: Any, *args: Any, **kwargs: Any) -> Any:
        if not script_location.is_user_file(sys._getframe(1).f_code.co_filename):
            # A library's own, such as PyTorch's differentiation rules. Names are looked up in the caller's frame.
            if original.__name__ == "script":
                kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
            return original(obj, *args, **kwargs)
        recorder.warn(_WARNING)
        if isinstance(obj, (types.FunctionType, torch.nn.Module)) and not hasattr(obj, "save"):
            obj.__dict__["save"] = _save
        inputs = args[0] if args else kwargs.get("example_inputs")
        if original.__name__ == "trace" and inputs is not None:
            run_once(obj, inputs)
        return obj

    return call


def _unchanged(module: Any, *_: object, **__: object) -> Any:
    return module


def _save(*_: object, **__: object) -> None:
    """Nothing: a trace writes no files."""
