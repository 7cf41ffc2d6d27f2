"""Operators that a script or library defines in Python (`torch.library.custom_op`): the function itself runs.

So what it allocates inside is in the trace. PyTorch asks its fake implementation instead, which knows the result alone:
it stands in where the function cannot run on fake tensors, such as one that calls a compiled module, and where it
compiles another one that a trace would run eagerly: products in fp8 would take several times their memory.
Source: torch/_library/custom_ops.py, `CustomOpDef`.

A module of its own: one kind of operator, of which `TraceMode` knows nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.operators.registry import Args, Kwargs

_EVERY_DEVICE = None
_failed: set[str] = set()
_compiles_inside: list[bool] = [False]


def run_what_compiles(*, compiles: bool) -> None:
    """Say whether code of `torch.compile` is compiled in this trace, as far as its options and its torch say so."""
    _compiles_inside[0] = compiles


def run(mode: Any, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """What the function of a custom operator returns; NotImplemented for other operators, and where it fails."""
    definition = None if func.name() in _failed else _definition_of(func)
    function = _function_of(definition)
    if definition is None or function is None:
        return NotImplemented
    if "compile" in definition._init_fn.__code__.co_names and not _compiles_inside[0]:
        return _not_run(mode, func, "it compiles")
    try:
        with mode:
            return function(*args, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a function for real tensors raises anything on fake ones
        return _not_run(mode, func, f"{type(error).__name__}: {str(error).partition(chr(10))[0][:80]}")


def _not_run(mode: Any, func: OpOverload, reason: str) -> Any:
    _failed.add(func.name())
    mode.recorder.warn(f"`{func.name()}` was not run ({reason}): what it allocates inside is not included")
    return NotImplemented


def _definition_of(func: OpOverload) -> Any:
    module = sys.modules.get("torch._library.custom_ops")
    return None if module is None else module.OPDEFS.get(func.name().partition(".")[0])


def _function_of(definition: Any) -> Callable[..., Any] | None:
    functions = getattr(definition, "_backend_fns", {})
    found: Callable[..., Any] | None = functions.get("cuda", functions.get(_EVERY_DEVICE))
    return found
