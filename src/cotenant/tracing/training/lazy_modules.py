"""Parameters and buffers without a shape (`nn.LazyLinear` and its kin), which get theirs in the first forward pass.

PyTorch moves the empty data of such a parameter and fills it later where it then is. A real parameter cannot hold fake
data, so here it stays where it was made, remembers where it should be, and becomes a fake one when its shape is known.
Source: torch/nn/parameter.py, `UninitializedTensorMixin`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import parameter

_KINDS: Any = (parameter.UninitializedParameter, parameter.UninitializedBuffer)
_Mixin: Any = vars(parameter)["UninitializedTensorMixin"]
_TARGET = "_cotenant_place"


def install(become: Callable[[Any, torch.Tensor], None]) -> None:
    """Replace how these get their place and their data; `become` gives a tensor new content, in place."""

    def materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        known_device, known_dtype = target_of(self)
        data = torch.empty(shape, device=device or known_device, dtype=dtype or known_dtype)
        self.__dict__.pop(_TARGET, None)
        is_parameter = isinstance(self, torch.nn.Parameter)
        self.__class__ = self.cls_to_become
        if data.device.type == "cuda":
            become(self, data)
            self._is_param = is_parameter
        else:
            self.data = data

    _Mixin.materialize = materialize
    for kind in _KINDS:
        kind.__new__ = _made_on_cpu(kind.__new__)


def is_lazy(tensor: object) -> bool:
    """Whether a tensor has no shape yet."""
    return isinstance(tensor, _Mixin)


def target_of(tensor: Any) -> tuple[torch.device, torch.dtype]:
    """Device and type that the data will have."""
    known = tensor.__dict__.get(_TARGET)
    return known if known is not None else (tensor.data.device, tensor.data.dtype)


def record_move(tensor: Any, fn: Callable[[Any], Any]) -> None:
    """Remember where `fn`, a part of `Module.to` and the like, would put the data."""
    device, dtype = target_of(tensor)
    example = fn(torch.empty(0, device=device, dtype=dtype))
    tensor.__dict__[_TARGET] = (example.device, example.dtype)


def _made_on_cpu(make: Callable[..., Any]) -> Callable[..., Any]:
    def new(cls: Any, *flags: Any, device: Any = None, dtype: Any = None, **more: Any) -> Any:
        made = make(cls, *flags, device="cpu", dtype=dtype, **more)
        wanted = torch.get_default_device() if device is None else torch.device(device)
        made.__dict__[_TARGET] = (wanted, made.data.dtype)
        return made

    return new
