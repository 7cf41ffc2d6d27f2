"""Labels of pixels that a script holds as floating-point numbers: `unique` of them gives as many as there are.

A module of its own: only the number of different labels is known, not what is computed from them. Larger tensors of
numbers have no values (`known_values`), and a loop over the labels of an image would have a round for every pixel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

_MAX_ELEMENTS = 1 << 22
_FIRST = 1 << 8  # of a tensor, which are looked at before all
_ATTRIBUTE = "_cotenant_labels"


def note(func: OpOverload, args: Any, out: Any) -> None:
    """Record the values of a copy from the CPU, if they are whole numbers."""
    if func is not torch.ops.aten._to_copy.default or not isinstance(out, FakeTensor) or not out.is_floating_point():
        return
    source = args[0]
    if isinstance(source, FakeTensor) or source.device.type != "cpu" or source.layout is not torch.strided:
        return
    if not 0 < source.numel() <= _MAX_ELEMENTS:
        return
    source = source.detach()
    if source.stride() != out.stride() or not _is_whole(source.reshape(-1)[:_FIRST]) or not _is_whole(source):
        return
    storage = out.untyped_storage()
    flat = torch.UntypedStorage(storage.nbytes())
    torch.empty(0, dtype=out.dtype).set_(flat, out.storage_offset(), out.shape, out.stride()).copy_(source)
    setattr(storage, _ATTRIBUTE, (flat, out._version))


def labels_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The labels in a copy from the CPU, or in a view of one; None for other tensors, and for what was written to."""
    if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
        return None
    flat, version = getattr(tensor.untyped_storage(), _ATTRIBUTE, (None, 0))
    if flat is None or tensor.is_inference() or tensor._version != version:
        return None
    return torch.empty(0, dtype=tensor.dtype).set_(flat, tensor.storage_offset(), tensor.shape, tensor.stride())


def _is_whole(values: torch.Tensor) -> bool:
    return bool((values == values.round()).all())
