"""`torch.distributed.tensor` is imported by scripts that use it, and by no other operator call.

From 2.10 on, PyTorch's C++ code imports it at the first call with a tensor subclass, such as a fake tensor, to compare
the argument's class with DTensor, and holds that class from then on. The import takes 0.2 to 0.4 s of CPU time (torch
2.13). Here C++ gets a class whose instances are those of the real DTensor, where that is loaded.
Source: torch/csrc/utils/python_arg_parser.cpp, `is_dtensor`; torch/csrc/autograd/python_variable.cpp,
`get_dtensor_class`.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

from cotenant.tracing.patches.registry import HookPatch, PatchContext, Phase

_MODULE = "torch.distributed.tensor"


def patches(context: PatchContext) -> list[HookPatch]:
    """The class that C++ compares with."""
    return [
        HookPatch(
            target="torch:Tensor._dtensor__new__", phase=Phase.LIBRARIES, register=_defer,
            reason="The first operator call imports DTensor, which takes 0.2 to 0.4 s.",
            source="torch/csrc/utils/python_arg_parser.cpp, `is_dtensor`", missing="before torch 2.10",
        )
    ]  # fmt: skip


def _loaded() -> Any:
    """The real class; None while its module is not loaded, or not yet whole."""
    found = getattr(sys.modules.get(_MODULE), "DTensor", None)
    return None if found is DTensorStandIn else found


class _LoadedDTensor(type):
    """The type of the class that C++ gets."""

    def __instancecheck__(cls, value: object) -> bool:
        real = _loaded()
        return real is not None and isinstance(value, real)

    def __getattr__(cls, name: str) -> Any:
        # Of subclasses of DTensor, `is_dtensor` compares `__torch_dispatch__` with that of the class.
        return getattr(_loaded(), name)


class DTensorStandIn(metaclass=_LoadedDTensor):
    """In place of DTensor in C++: it has the instances and attributes of the real class."""


def _defer() -> Callable[[], None] | None:
    """Let C++ take the stand-in, unless the real module is loaded, and C++ may have the real class already."""
    import torch

    if _MODULE in sys.modules:
        return None

    class Probe(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return None

    probe = torch.Tensor._make_subclass(Probe, torch.empty(0))
    module: Any = types.ModuleType(_MODULE)
    module.DTensor = DTensorStandIn
    sys.modules[_MODULE] = module
    try:
        torch.ops.aten.detach.default(probe)
    finally:
        del sys.modules[_MODULE]
    return lambda: None  # C++ holds the class, which behaves as the real one
