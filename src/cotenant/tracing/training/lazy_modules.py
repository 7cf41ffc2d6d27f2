"""Parameters and buffers without a shape (`nn.LazyLinear` and others), which get theirs in the first forward pass.

PyTorch moves the empty data of such a parameter and fills it later, on the device where it then is. A real parameter
cannot hold fake data, so here the parameter stays on the CPU, remembers its target device, and becomes a fake tensor
when its shape is known. Source: torch/nn/parameter.py, `UninitializedTensorMixin`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import parameter

from cotenant.tracing.patches.registry import Patch, Phase

_Mixin: Any = vars(parameter)["UninitializedTensorMixin"]
_TARGET = "_cotenant_target"


def patches(become: Callable[[Any, torch.Tensor], None]) -> list[Patch]:
    """How these tensors get their device and their data; `become` gives a tensor new content, in place."""

    def materialize(self: Any, shape: Any, device: Any = None, dtype: Any = None) -> None:
        target_device, target_dtype = target_of(self)
        data = torch.empty(shape, device=device or target_device, dtype=dtype or target_dtype)
        self.__dict__.pop(_TARGET, None)
        is_parameter = isinstance(self, torch.nn.Parameter)
        self.__class__ = self.cls_to_become
        if data.device.type == "cuda":
            become(self, data)
            self._is_param = is_parameter
        else:
            self.data = data

    source = "torch/nn/parameter.py, `UninitializedTensorMixin.materialize`"
    return [
        Patch(
            target="torch.nn.parameter:UninitializedTensorMixin.materialize", phase=Phase.TRAINING,
            replacement=materialize, reason="It sets `data`, which cannot hold fake data on a real parameter.",
            source=source,
        ),
        *(
            Patch(
                target=f"torch.nn.parameter:UninitializedTensorMixin.{name}", phase=Phase.TRAINING, create=True,
                replacement=property(value), source="torch/nn/parallel/data_parallel.py, `DataParallel.forward`",
                reason="Scripts and `DataParallel` ask for the device of the parameters, which stay on the CPU.",
            )
            for name, value in (("device", lambda self: target_of(self)[0]), ("is_cuda", _is_on_gpu))
        ),
        *(
            Patch(
                target=f"torch.nn.parameter:{name}.__new__", phase=Phase.TRAINING, replacement=_new_on_cpu, wraps=True,
                reason="Its empty data are allocated on the device at once, where no mode sees them.", source=source,
            )
            for name in ("UninitializedParameter", "UninitializedBuffer")
        ),
    ]  # fmt: skip


def is_lazy(tensor: object) -> bool:
    """Whether a tensor has no shape yet."""
    return isinstance(tensor, _Mixin)


def target_of(tensor: Any) -> tuple[torch.device, torch.dtype]:
    """Device and dtype that the data will have."""
    known = tensor.__dict__.get(_TARGET)
    return known if known is not None else (tensor.data.device, tensor.data.dtype)


def record_move(tensor: Any, fn: Callable[[Any], Any]) -> None:
    """Remember where `fn`, a part of `Module.to` and similar methods, would put the data."""
    device, dtype = target_of(tensor)
    example = fn(torch.empty(0, device=device, dtype=dtype))
    tensor.__dict__[_TARGET] = (example.device, example.dtype)


def _is_on_gpu(tensor: Any) -> bool:
    return target_of(tensor)[0].type == "cuda"


def _new_on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    def new(cls: Any, *flags: Any, device: Any = None, dtype: Any = None, **more: Any) -> Any:
        tensor = original(cls, *flags, device="cpu", dtype=dtype, **more)
        target = torch.get_default_device() if device is None else torch.device(device)
        tensor.__dict__[_TARGET] = (target, tensor.data.dtype)
        return tensor

    return new
