"""Attributes of fake tensors that are no operators: data pointers, formatting, and resizing of storages.

No address is real, but each live storage has one of its own, which libraries rely on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_ALIGNMENT = 512


def install(recorder: Any) -> None:
    """Replace `data_ptr()` of fake tensors and of their storages, and record storages that are resized."""
    storage_ptr: Any = torch.UntypedStorage.data_ptr

    def of_storage(self: torch.UntypedStorage) -> int:
        return _address(self) if self.device.type == "meta" else int(storage_ptr(self))

    def of_tensor(self: FakeTensor) -> int:
        return _address(self.untyped_storage()) + self.storage_offset() * self.element_size()

    resize: Any = torch.UntypedStorage.resize_

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        out = resize(self, size)
        if self.device.type == "meta":
            recorder.record_resize(self)
        return out

    torch.UntypedStorage.data_ptr = of_storage
    torch.UntypedStorage.resize_ = resize_
    FakeTensor.__format__ = _format
    FakeTensor.data_ptr = of_tensor


def _format(self: FakeTensor, spec: str) -> str:
    """`f"{loss:.3f}"`. `torch.Tensor.__format__` formats the value only where the type is exactly `torch.Tensor`."""
    return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)


def _address(storage: torch.UntypedStorage) -> int:
    """Distinct for storages that live at the same time, and aligned to 512 B like blocks of the caching allocator."""
    return storage._cdata * _ALIGNMENT if storage.nbytes() else 0
