"""Attributes of fake tensors that are no operators: data pointers, formatting, and resizing of storages.

No address is real, but each live storage has one of its own, which libraries rely on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_ALIGNMENT = 512


def patches(context: PatchContext) -> list[Patch]:
    """`data_ptr()` of fake tensors and their storages, storages that are resized, and numbers in f-strings."""
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
