"""How many elements of a tensor can be other than zero where a few were chosen: the anchors that a detector assigns.

Assigners of YOLO and its successors scatter ones to the positions that `topk` gives for each box of an image, multiply
the result by other masks, sum it over the boxes, and take what the predictions have at the anchors that are left. All
anchors of an image are a hundred times as many. Slices of the first dimension are images, so bounds hold for each.
Source: ultralytics/utils/tal.py, `TaskAlignedAssigner`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

_BOUND_ATTRIBUTE = "_cotenant_chosen"
_WRITES_ATTRIBUTE = "_cotenant_chosen_writes"
_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros", "zero_"})
_SCATTERS = frozenset({"scatter", "scatter_", "scatter_add", "scatter_add_"})
_SAME = frozenset({"clone", "_to_copy", "detach", "alias", "abs"})
_COMPARISONS = frozenset({"gt", "ne"})
_PRODUCTS = frozenset({"mul", "mul_", "bitwise_and", "logical_and", "__and__"})
_REDUCTIONS = frozenset({"sum", "amax", "max", "any"})
OPERATORS = frozenset(
    {*_ZEROS, *_SCATTERS, *_SAME, *_COMPARISONS, *_PRODUCTS, *_REDUCTIONS}
    | {"masked_fill", "masked_fill_", "where", "expand", "unsqueeze", "select", "unbind"}
)
"""Names of operators that `propagate` knows."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """At most so many elements that are not zero.

    Attributes:
        of_slice: in each slice of the first dimension.
        columns: positions of the last dimension, in each slice, that have any.
    """

    of_slice: int
    columns: int

    def __add__(self, other: _Bound) -> _Bound:
        return _Bound(self.of_slice + other.of_slice, self.columns + other.columns)


def max_nonzero(tensor: Any) -> int | None:
    """The maximum number of elements that are not zero; None: not known."""
    bound = _bound(tensor)
    return None if bound is None else bound.of_slice * (tensor.shape[0] if tensor.dim() > 1 else 1)


def propagate(func: OpOverload, args: Any, out: Any) -> None:
    """Set the bounds of what an operator made, by those of its arguments."""
    name = func._opname
    first = out[0] if isinstance(out, (list, tuple)) and out else out
    if not isinstance(first, FakeTensor) or first.layout is not torch.strided:
        return
    bound = _inferred(name, args, first) if name in OPERATORS else None
    if is_written(func) and (writes := _writes(first)) is not None:
        setattr(first.untyped_storage(), _WRITES_ATTRIBUTE, writes + 1)
    if bound is not None:
        for part in out if name == "unbind" else [first]:
            _set(part, bound)


def is_written(func: OpOverload) -> bool:
    """Whether an operator writes to its first argument."""
    return func._opname[-1] == "_" and not func._opname.endswith("__")


def _inferred(name: str, args: Any, out: FakeTensor) -> _Bound | None:
    if name in _ZEROS:
        return _Bound(0, 0)
    if name in ("unbind", "select"):  # an image of several
        is_first = not (args[1] if len(args) > 1 else 0)
        return _bound(args[0]) if is_first and args[0].dim() > 1 else None
    before = _of_slices(args[0], out)
    if name in _PRODUCTS:
        factors = [_of_slices(arg, out) for arg in args[:2] if getattr(arg, "shape", ()) == out.shape]
        return _least(factors)
    if name == "where" and len(args) == 3:
        chosen, other = _least([_of_slices(arg, out) for arg in args[:2]]), _of_slices(args[2], out)
        return chosen + other if chosen is not None and other is not None else None
    if before is None:
        return None
    if name in _SCATTERS:
        index, dim = args[2], args[1] % out.dim()
        added = index.numel() // out.shape[0]
        return before + _Bound(added, added) if dim and index.shape[0] == out.shape[0] else None
    return before if name in _SAME else _of_one(name, args, out, before)


def _of_one(name: str, args: Any, out: FakeTensor, before: _Bound) -> _Bound | None:
    """Of an operator on one tensor and numbers."""
    if name in _COMPARISONS:
        number = args[1]
        is_false_of_zero = not isinstance(number, torch.Tensor) and (number >= 0 if name == "gt" else number == 0)
        return before if is_false_of_zero else None
    if name.startswith("masked_fill"):
        return before if not isinstance(args[2], torch.Tensor) and args[2] == 0 else None
    if name == "unsqueeze":
        return before if args[1] % out.dim() < out.dim() - 1 else _Bound(before.of_slice, before.of_slice)
    if name in _REDUCTIONS:
        dims = _dims(args[1], args[0].dim()) if len(args) > 1 else {0}
        if args[0].dim() - 1 in dims:
            return _Bound(before.of_slice, before.of_slice) if 0 not in dims else None
        return _Bound(min(before.of_slice, before.columns), before.columns) if 0 not in dims else None
    if name == "expand" and args[0].shape[-1:] == out.shape[-1:]:
        return _Bound(before.of_slice * (out.numel() // max(args[0].numel(), 1)), before.columns)
    return None


def _of_slices(value: Any, out: FakeTensor) -> _Bound | None:
    """The bound of the slices of an argument, if they are those of the result."""
    bound = _bound(value)
    return bound if bound is not None and out.dim() > 1 and value.shape[:1] == out.shape[:1] else None


def _least(bounds: Iterable[_Bound | None]) -> _Bound | None:
    known = [bound for bound in bounds if bound is not None]
    return _Bound(min(one.of_slice for one in known), min(one.columns for one in known)) if known else None


def _bound(value: Any) -> _Bound | None:
    found = getattr(value, _BOUND_ATTRIBUTE, None)
    return found[0] if found is not None and found[1] == _writes(value) else None


def _set(tensor: FakeTensor, bound: _Bound) -> None:
    writes = _writes(tensor)
    if writes is None:
        writes = 0
        setattr(tensor.untyped_storage(), _WRITES_ATTRIBUTE, writes)
    setattr(tensor, _BOUND_ATTRIBUTE, (bound, writes))


def _writes(tensor: Any) -> int | None:
    """How often its storage was written to since a tensor of it had a bound; None: none had."""
    return getattr(tensor.untyped_storage(), _WRITES_ATTRIBUTE, None)


def _dims(value: Any, count: int) -> set[int]:
    return {dim % max(count, 1) for dim in (value if isinstance(value, (list, tuple)) else [value])}
