"""How many elements of a mask can be true where its values are not known: at most as many as were set.

Detectors draw samples by setting a few elements of a zero mask, and then call `nonzero`. Triplet losses multiply two
masks of pairs into one that is too large for its values to be tracked. Models of knowledge graphs look for the rank of
an entity in the indices that `argsort` returned: it has one. Diffusion models look for a step of time that was drawn in
the steps of their schedule, which all differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import ranked_choices
from cotenant.tracing.assumptions.booleans import AND_OPERATORS

MASK_DTYPES = frozenset({torch.bool, torch.uint8})
_MAX_TRUE_ATTRIBUTE = "_cotenant_max_true"
_COUNTED_ATTRIBUTE = "_cotenant_counted"
_WRITES_ATTRIBUTE = "_cotenant_mask_writes"
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros", "zero_"})
_SAME_ELEMENTS = frozenset({"clone", "_to_copy", "detach", "alias"})
_OR = frozenset({"bitwise_or", "logical_or", "__or__", "add"})


def max_true(tensor: Any) -> int | None:
    """The maximum number of true elements; None: not known, or the mask was written to by way of a view."""
    count, writes = getattr(tensor, _MAX_TRUE_ATTRIBUTE, (None, 0))
    return count if count is None or writes == _writes(tensor) else None


def note_count(args: Any, out: FakeTensor) -> None:
    """Note how many elements `out`, the number of true elements of a whole mask, stands for."""
    mask = args[0]
    if mask.dtype in MASK_DTYPES and out.dim() == 0:
        most = max_true(mask)
        setattr(out, _COUNTED_ATTRIBUTE, mask.numel() if most is None else most)


def counted(tensor: Any) -> int | None:
    """The number of elements that an unknown mask selects, if this is their count; selecting by it gives as many."""
    found = getattr(tensor, _COUNTED_ATTRIBUTE, None)
    return None if found is None else int(found)


def _writes(tensor: Any) -> int:
    """How often the storage of a mask was written to."""
    return int(getattr(tensor.untyped_storage(), _WRITES_ATTRIBUTE, 0))


def propagate(func: OpOverload, args: Any, out: FakeTensor, values: Callable[[Any], torch.Tensor | None]) -> None:
    """Set the maximum for `out`, a mask that `func` returned. `values`: known values of a tensor."""
    name = func._opname
    count: int | None = None
    if name in _ZEROS:
        count = 0
    elif name in _SAME_ELEMENTS:
        count = max_true(args[0])
    elif name in _OR and len(args) > 1:
        first, second = max_true(args[0]), max_true(args[1])
        count = first + second if first is not None and second is not None else None
    elif name in AND_OPERATORS and values(out) is None:
        count = _count_of_and([values(arg) if isinstance(arg, torch.Tensor) else None for arg in args[:2]], out.dim())
    elif name == "eq" and len(args) > 1:
        count = _count_of_equal(args[0], args[1], values)
    elif name in ("index_put_", "index_put"):
        before, indices = max_true(args[0]), [index for index in args[1] if index is not None]
        if before is not None and all(index.dtype not in MASK_DTYPES for index in indices):
            count = before + max((index.numel() for index in indices), default=out.numel())
    if name.endswith("_") and not name.endswith("__"):
        setattr(out.untyped_storage(), _WRITES_ATTRIBUTE, _writes(out) + 1)
    if count is not None:
        setattr(out, _MAX_TRUE_ATTRIBUTE, (count, _writes(out)))


def _count_of_and(masks: list[torch.Tensor | None], dims: int) -> int | None:
    """Elements that are true in both masks, broadcast to `dims` dimensions, without making their product.

    A dimension that only one mask has is summed in that mask alone; sums over the others are multiplied.
    """
    if any(mask is None or mask.dtype not in MASK_DTYPES for mask in masks):
        return None
    pair = [mask.ne(0).reshape((1,) * (dims - mask.dim()) + mask.shape) for mask in masks if mask is not None]
    alone = [[dim for dim in range(dims) if other.shape[dim] == 1] for other in reversed(pair)]
    sums = [mask.sum(own, keepdim=True) if own else mask.long() for mask, own in zip(pair, alone, strict=True)]
    return int((sums[0] * sums[1]).sum())


def _count_of_equal(first: Any, second: Any, values: Callable[[Any], torch.Tensor | None]) -> int | None:
    """Elements of ranked indices, or of a tensor with known values, that equal one number."""
    for tensor, number in ((first, second), (second, first)):
        if (isinstance(number, torch.Tensor) and number.numel() != 1) or not isinstance(tensor, torch.Tensor):
            continue
        ranked = ranked_choices.max_equal(tensor)
        if ranked is not None:
            return ranked
        is_drawn = isinstance(number, torch.Tensor) and values(number) is None
        known = values(tensor) if is_drawn and tensor.numel() > 1 else None
        if known is not None:
            return int(known.unique(return_counts=True)[1].max())
    return None
