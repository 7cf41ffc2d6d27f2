"""Indices that `topk` and `sort` return, where a script reads them on the CPU: assumed to be distinct.

Which elements rank first depends on values that are not computed, but two ranks never have one index. Zeros, which an
unknown tensor reads as otherwise, would be one element ranked several times; scripts divide by an index, too, as those
of time series do that turn the strongest frequencies into periods.

The first of `topk` is index 1: index 0 of a spectrum is the mean of the series, which such scripts set to zero. Small
frequencies are long periods, which pad a series most, so the sizes that follow are large ones.

A module of its own: one assumption, as the others here.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import RANDOM_CHOICE, has_known_values
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

RANKED = "which elements rank first depends on values that are not computed; assumed: those after the first, in order"
"""The warning of it: what a script makes of the indices in Python is unknown, sizes included."""

_CHOICES_ATTRIBUTE = "_cotenant_ranked"
_MAX_RANKED = 1 << 23
"""Rankings of all entities of a knowledge graph, one for each sample of a batch, have millions of indices, in which the
script looks up the right one. More take too much of this machine's memory."""
_MAX_DRAWN = 1 << 16  # more are not read one by one


@operators.assumption_for("aten::topk", "aten::sort", "aten::sort.stable")
def _mark(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Note where the indices of a result come from; nothing is computed until they are read."""
    indices, source = out[1], args[0]
    if not isinstance(indices, FakeTensor) or not source.dim():
        return
    position = next(i for i, argument in enumerate(func._schema.arguments) if argument.name == "dim")
    dim = int(args[position] if len(args) > position else kwargs.get("dim", -1)) % source.dim()
    first = 1 if func._opname == "topk" else 0
    setattr(indices.untyped_storage(), _CHOICES_ATTRIBUTE, (indices.shape, dim, source.shape[dim], first))


@operators.assumption_for("aten::multinomial")
def _draw(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Draws without replacement: each row has distinct elements."""
    count, replaced = args[1], args[2] if len(args) > 2 else kwargs.get("replacement", False)
    if count > 1 and not replaced and out.numel() <= _MAX_DRAWN and not has_known_values(out):
        ctx.known_values.assume(out, torch.arange(count).expand(out.shape), RANDOM_CHOICE)


def assumed_indices(tensor: Any) -> torch.Tensor | None:
    """Assumed values of a tensor that is, or is a view of, the indices of a `topk` or `sort`; None of any other."""
    if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided or tensor.dtype is not torch.int64:
        return None
    shape, dim, choices, first = getattr(tensor.untyped_storage(), _CHOICES_ATTRIBUTE, (None, 0, 0, 0))
    if shape is None or shape.numel() > _MAX_RANKED:
        return None
    ranks = (first + torch.arange(shape[dim])) % choices
    full = ranks.reshape([-1 if index == dim else 1 for index in range(len(shape))]).expand(shape).contiguous()
    return full.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def max_equal(tensor: Any) -> int | None:
    """The maximum number of elements that equal one number, in indices of `topk` or `sort`: one for every ranking.

    None of any other tensor, and of a view that is neither all indices nor a part of one ranking.
    """
    if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided or tensor.dtype is not torch.int64:
        return None
    shape, dim, _, _ = getattr(tensor.untyped_storage(), _CHOICES_ATTRIBUTE, (None, 0, 0, 0))
    if shape is None or not tensor.numel():
        return None
    if tensor.shape == shape:
        return tensor.numel() // int(shape[dim])
    step = math.prod(shape[dim + 1 :])  # between two ranks
    first_rank = tensor.storage_offset() // step % int(shape[dim])
    is_of_one = tensor.dim() == 1 and tensor.stride(0) == step and first_rank + tensor.numel() <= shape[dim]
    return 1 if is_of_one else None
