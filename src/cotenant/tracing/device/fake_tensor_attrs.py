"""Attributes of fake tensors that are no operators: data pointers, formatting, lists, and resizing of storages.

No address is real, but each live storage has one of its own, which libraries rely on.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import has_known_values
from cotenant.tracing.assumptions.ranked_choices import assumed_indices
from cotenant.tracing.operators.unique import ALL_DIFFERENT
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_ALIGNMENT = 512
_MAX_READ_ONE_BY_ONE = 64
"""Elements that `tolist` reads like `item`, in 0.1 ms each; the boxes of a validation have a million."""
_MAX_DIFFERENT = 256
"""Iterations of a loop over the different values of a tensor, such as the classes of boxes."""


def patches(context: PatchContext) -> list[Patch]:
    """`data_ptr()` of fake tensors and storages, storages that are resized, numbers in f-strings, and `tolist`."""
    recorder = context.recorder

    def storage_data_ptr(original: Any) -> Any:
        def data_ptr(self: torch.UntypedStorage) -> int:
            return _address(self) if self.device.type == "meta" else int(original(self))

        return data_ptr

    def storage_resize(original: Any) -> Any:
        def resize_(self: torch.UntypedStorage, size: int) -> Any:
            out = original(self, size)
            if self.device.type == "meta":
                recorder.record_resize(self)
            return out

        return resize_

    def tensor_data_ptr(self: FakeTensor) -> int:
        return _address(self.untyped_storage()) + self.storage_offset() * self.element_size()

    def iterate(self: FakeTensor) -> Any:
        if self.dim() and len(self) > _MAX_DIFFERENT and getattr(self, ALL_DIFFERENT, False):
            recorder.warn(
                f"a loop runs for each of {len(self)} values that are not known; assumed: {_MAX_DIFFERENT} times"
            )
            return iter(self[:_MAX_DIFFERENT].unbind(0))
        return torch.Tensor.__iter__(self)

    return [
        Patch(
            target="torch:UntypedStorage.data_ptr", phase=Phase.DEVICE, replacement=storage_data_ptr, wraps=True,
            reason="A meta storage has address 0; libraries compare addresses to find shared storages.",
            source="torch/storage.py, `UntypedStorage`",
        ),
        Patch(
            target="torch:UntypedStorage.resize_", phase=Phase.DEVICE, replacement=storage_resize, wraps=True,
            reason="FSDP frees and allocates parameters by resizing their storages; the trace records both.",
            source="torch/distributed/fsdp/_fully_shard/_fsdp_common.py",
        ),
        Patch(
            target="torch._subclasses.fake_tensor:FakeTensor.__format__", phase=Phase.DEVICE, replacement=_format,
            reason='`f"{loss:.3f}"` formats a number for torch.Tensor only, not for its subclasses.',
            source="torch/_tensor.py, `Tensor.__format__`",
        ),
        Patch(
            target="torch._subclasses.fake_tensor:FakeTensor.tolist", phase=Phase.DEVICE, replacement=_tolist,
            wraps=True, reason="It reads its elements one by one, where a GPU copies them at once.",
            source="torch/_subclasses/fake_tensor.py, `FakeTensor.tolist`",
        ),
        Patch(
            target="torch._subclasses.fake_tensor:FakeTensor.numpy", phase=Phase.DEVICE, replacement=_numpy,
            create=True, reason="Scripts catch the error of a tensor on a GPU, which is another than of a subclass.",
            source="torch/csrc/utils/tensor_numpy.cpp, `tensor_to_numpy`",
        ),
        Patch(
            target="torch._subclasses.fake_tensor:FakeTensor.__iter__", phase=Phase.DEVICE, replacement=iterate,
            create=True, reason="A loop over different values that are not known takes minutes.",
            source="torch/_tensor.py, `Tensor.__iter__`",
        ),
        Patch(
            target="torch._subclasses.fake_tensor:FakeTensor.data_ptr", phase=Phase.DEVICE, replacement=tensor_data_ptr,
            reason="A fake tensor refuses to give an address, which libraries ask for.",
            source="torch/_subclasses/fake_tensor.py, `FakeTensor`",
        ),
    ]  # fmt: skip


def _format(self: FakeTensor, spec: str) -> str:
    """`f"{loss:.3f}"`. `torch.Tensor.__format__` formats the value only where the type is exactly `torch.Tensor`."""
    return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)


def _address(storage: torch.UntypedStorage) -> int:
    """Distinct for storages that live at the same time, and aligned to 512 B like blocks of the caching allocator."""
    return storage._cdata * _ALIGNMENT if storage.nbytes() else 0


def _tolist(original: Any) -> Any:
    def tolist(self: FakeTensor) -> Any:
        one_by_one = self.numel() <= _MAX_READ_ONE_BY_ONE
        if one_by_one or has_known_values(self) or assumed_indices(self) is not None:
            return original(self)
        values: Any = self[(0,) * self.dim()].item()
        for size in reversed(self.shape):
            values = [copy.copy(values) for _ in range(size)]
        return values

    return tolist


def _numpy(self: FakeTensor, *, force: bool = False) -> Any:
    if self.fake_device.type != "cuda":
        return torch.Tensor.numpy(self, force=force)
    if force:
        return self.detach().cpu().numpy()
    raise TypeError(
        f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory "
        "first."
    )
