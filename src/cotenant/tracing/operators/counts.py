"""How many elements of a mask can be true, where its values are not known: no more than were set.

Detectors draw samples by setting a few places of an empty mask, and then look for what is set. Losses on triplets
multiply a mask of pairs by another, which gives one too big for its values to be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_ATTRIBUTE = "_cotenant_most"
_EMPTY = frozenset({"zeros", "zeros_like", "new_zeros", "zero_"})
_KEEP = frozenset({"clone", "_to_copy", "detach", "alias"})
_EITHER = frozenset({"bitwise_or", "logical_or", "__or__", "add"})
_BOTH = frozenset({"bitwise_and", "logical_and", "__and__", "mul"})
KINDS = frozenset({torch.bool, torch.uint8})


def most(tensor: Any) -> int | None:
    """The most elements that can be true; None: not known."""
    return getattr(tensor, _ATTRIBUTE, None)


def follow(func: Any, args: Any, out: FakeTensor, values: Callable[[Any], torch.Tensor | None]) -> None:
    """Note for `out`, a mask that `func` gave or wrote to, how much of it can be true. `values`: those of a tensor."""
    name = func._opname
    found: int | None = None
    if name in _EMPTY:
        found = 0
    elif name in _KEEP:
        found = most(args[0])
    elif name in _EITHER and len(args) > 1:
        both = most(args[0]), most(args[1])
        found = both[0] + both[1] if both[0] is not None and both[1] is not None else None
    elif name in _BOTH and values(out) is None:
        found = _both([values(each) if isinstance(each, torch.Tensor) else None for each in args[:2]], out.dim())
    elif name in ("index_put_", "index_put"):
        before, places = most(args[0]), [each for each in args[1] if each is not None]
        if before is not None and all(each.dtype not in KINDS for each in places):
            found = before + max((each.numel() for each in places), default=out.numel())
    elif not name.endswith("_"):
        return
    if found is not None or hasattr(out, _ATTRIBUTE):
        setattr(out, _ATTRIBUTE, found)


def _both(masks: list[torch.Tensor | None], dims: int) -> int | None:
    """How many places are true in both, counted without their product: over dimensions of one alone each is summed."""
    if any(each is None or each.dtype not in KINDS for each in masks):
        return None
    ours = [each.ne(0).reshape((1,) * (dims - each.dim()) + each.shape) for each in masks if each is not None]
    alone = [[dim for dim in range(dims) if other.shape[dim] == 1] for other in reversed(ours)]
    sums = [each.sum(dim, keepdim=True) if dim else each.long() for each, dim in zip(ours, alone, strict=True)]
    return int((sums[0] * sums[1]).sum())
