"""How many elements of a mask can be true, where its values are not known: no more than were set.

Detectors draw samples by setting a few places of an empty mask, and then look for what is set. Losses on triplets
multiply a mask of pairs by another, which gives one too big for its values to be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_MAX_TRUE_ATTRIBUTE = "_cotenant_most"
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros", "zero_"})
_SAME_ELEMENTS = frozenset({"clone", "_to_copy", "detach", "alias"})
_OR = frozenset({"bitwise_or", "logical_or", "__or__", "add"})
_AND = frozenset({"bitwise_and", "logical_and", "__and__", "mul"})
MASK_DTYPES = frozenset({torch.bool, torch.uint8})


def max_true(tensor: Any) -> int | None:
    """The most elements that can be true; None: not known."""
    return getattr(tensor, _MAX_TRUE_ATTRIBUTE, None)


def propagate(func: Any, args: Any, out: FakeTensor, values: Callable[[Any], torch.Tensor | None]) -> None:
    """Note for `out`, a mask that `func` gave or wrote to, how much of it can be true. `values`: those of a tensor."""
    name = func._opname
    found: int | None = None
    if name in _ZEROS:
        found = 0
    elif name in _SAME_ELEMENTS:
        found = max_true(args[0])
    elif name in _OR and len(args) > 1:
        both = max_true(args[0]), max_true(args[1])
        found = both[0] + both[1] if both[0] is not None and both[1] is not None else None
    elif name in _AND and values(out) is None:
        found = _count_of_and(
            [values(each) if isinstance(each, torch.Tensor) else None for each in args[:2]], out.dim()
        )
    elif name in ("index_put_", "index_put"):
        before, places = max_true(args[0]), [each for each in args[1] if each is not None]
        if before is not None and all(each.dtype not in MASK_DTYPES for each in places):
            found = before + max((each.numel() for each in places), default=out.numel())
    elif not name.endswith("_"):
        return
    if found is not None or hasattr(out, _MAX_TRUE_ATTRIBUTE):
        setattr(out, _MAX_TRUE_ATTRIBUTE, found)


def _count_of_and(masks: list[torch.Tensor | None], dims: int) -> int | None:
    """How many places are true in both, counted without their product: over dimensions of one alone each is summed."""
    if any(each is None or each.dtype not in MASK_DTYPES for each in masks):
        return None
    ours = [each.ne(0).reshape((1,) * (dims - each.dim()) + each.shape) for each in masks if each is not None]
    alone = [[dim for dim in range(dims) if other.shape[dim] == 1] for other in reversed(ours)]
    sums = [each.sum(dim, keepdim=True) if dim else each.long() for each, dim in zip(ours, alone, strict=True)]
    return int((sums[0] * sums[1]).sum())
