"""Positions that a script reads on the CPU, where it added numbers to them on the GPU: `x[start:start + 8]`.

They depend on values that are not computed. Read one by one, all would be 1, and a patch from `start` to `end` empty:
nothing of it would be in the estimate. So what was made of the same positions by adding numbers differs by these.
A module of its own: one assumption, as the others here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import booleans
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_DTYPES = (torch.int64, torch.int32)
_ATTRIBUTE = "_cotenant_position"


@dataclass(slots=True)
class _Origin:
    """Positions that others may have been made of.

    Attributes:
        assumed: where they are, once one of them was read.
        is_related: whether others were.
    """

    assumed: int | None = None
    is_related: bool = False


@operators.assumption_for("aten::add.Tensor", "aten::sub.Tensor", "aten::add_.Tensor", "aten::sub_.Tensor")
def _shift(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Note that `out` are the positions of the first argument, and by how much they are larger."""
    source, number = args[:2]
    if not _is_position(source) or type(number) is not int or kwargs or out.dtype is not source.dtype:
        return
    origin, shift = _noted(source) or (_Origin(0 if booleans.is_zero_count(source) else None), 0)
    origin.is_related = True
    setattr(source.untyped_storage(), _ATTRIBUTE, (origin, shift))
    shift += number if func._opname.startswith("add") else -number
    setattr(out.untyped_storage(), _ATTRIBUTE, (origin, shift))


@operators.assumption_for("aten::clamp", "aten::clamp_min", "aten::clamp_max", "aten::_to_copy", "aten::clone")
def _keep(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Positions within an image are assumed to be as far from each other as they were."""
    if _is_position(args[0]) and _is_position(out) and (noted := _noted(args[0])) is not None:
        setattr(out.untyped_storage(), _ATTRIBUTE, noted)


def assumed_position(tensor: Any, first: int) -> int | None:
    """The value of each element of positions; `first`: of those that were not related to others before.

    None of a tensor that has no whole numbers.
    """
    if not _is_position(tensor):
        return None
    origin, shift = _noted(tensor) or (_Origin(), 0)
    if origin.assumed is None or not origin.is_related:
        origin.assumed = max(first, first - shift)  # of a slice, the begin is read first: it is not negative
        setattr(tensor.untyped_storage(), _ATTRIBUTE, (origin, shift))
    return max(origin.assumed + shift, 0)


def _is_position(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.dtype in _DTYPES and tensor.layout is torch.strided


def _noted(tensor: Any) -> tuple[_Origin, int] | None:
    return getattr(tensor.untyped_storage(), _ATTRIBUTE, None)
