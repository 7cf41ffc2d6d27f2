"""What Python asks of fake tensors beside their operators: addresses, and how to print a loss.

No address is real, but each storage has its own, as libraries expect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_ALIGNMENT = 512


def install(recorder: Any) -> None:
    """Answer `data_ptr()` of fake tensors and of their storages, and see storages that change their size."""
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
    """`f"{loss:.3f}"`; torch does so for its own class only."""
    return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)


def _address(storage: torch.UntypedStorage) -> int:
    """Apart for any two storages that live at the same time, and aligned as the allocator aligns."""
    return storage._cdata * _ALIGNMENT if storage.nbytes() else 0
