"""Routing in mixtures of experts: tokens are assumed to be spread evenly over the experts.

The router's scores are not computed, but the sum of its choices is known: every token goes to `k` experts. An even
spread keeps that sum; taking the largest possible size, as elsewhere, would send every token to every expert. A real
router is uneven, which moves bytes between experts and leaves their sum unchanged.

`topk` of random numbers draws a mask, as masked autoencoders do. Only the number of drawn elements matters for memory,
so the same assumption is made without a warning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import EVEN_ROUTING, RANDOM_CHOICE, assumption_of
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable, overload_names
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

operators = OperatorTable()

_MAX_EXPERTS = 1024
_RANDOM_ATTRIBUTE = "_cotenant_drawn"
_RANDOM = ("rand", "randn", "rand_like", "randn_like", "uniform_", "normal_", "exponential_")


def patches(context: PatchContext) -> list[Patch]:
    """`one_hot`, whose own operators scatter into tensors too large to be tracked."""
    original, values = torch.nn.functional.one_hot, context.mode.known_values

    def one_hot(input: Any, num_classes: int = -1) -> Any:  # noqa: A002 - its name in PyTorch
        tensor = input
        made = _scattered_ones(tensor, num_classes) if num_classes > 0 and _is_integers(tensor) else None
        if made is None:
            made = original(tensor, num_classes)
        if not (isinstance(tensor, FakeTensor) and isinstance(made, FakeTensor) and 1 < num_classes <= _MAX_EXPERTS):
            return made
        if values.of(tensor) is None and tensor.numel():
            values.assume(tensor, even_choices(tensor.shape, num_classes), EVEN_ROUTING)
        known = values.of(tensor)
        is_wanted = known is not None and values.of(made) is None and made.numel() <= values.max_assumed_elements
        # A class of made-up data may be out of range. On a GPU no operator checks it before the kernel runs.
        if is_wanted and _are_classes(known, num_classes):
            values.assume(made, original(known, num_classes), EVEN_ROUTING)
        return made

    return [
        Patch(
            target=target, phase=Phase.OPERATORS, replacement=one_hot,
            reason="A router's choices are assumed even; `one_hot` of them is known from that.",
            source="aten/src/ATen/native/Onehot.cpp, `one_hot`",
        )
        for target in ("torch.nn.functional:one_hot", "torch._C._nn:one_hot")
    ]  # fmt: skip


def _are_classes(values: torch.Tensor, count: int) -> bool:
    return not values.numel() or (int(values.min()) >= 0 and int(values.max()) < count)


@operators.assumption_for("aten::topk")
def _topk(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Over the last dimension of many rows: each row chooses the next `k` candidates, round robin."""
    source, indices = args[0], out[1]
    if not is_routing(args, kwargs) or ctx.known_values.of(source) is not None:
        return
    if indices.numel() <= ctx.known_values.max_assumed_elements:
        drawn = hasattr(source.untyped_storage(), _RANDOM_ATTRIBUTE) and not source.requires_grad
        why = RANDOM_CHOICE if drawn else EVEN_ROUTING
        ctx.known_values.assume(indices, even_choices(indices.shape, source.shape[-1]), why)


def is_routing(args: Args, kwargs: Kwargs) -> bool:
    """Whether a call of `topk` is as a router's: each of many rows chooses some of its few candidates."""
    source, k = args[0], args[1]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    choices = source.shape[-1] if source.dim() else 0
    few = 1 < choices <= _MAX_EXPERTS and k < choices
    return few and source.dim() > 1 and source.numel() > choices and dim % source.dim() == source.dim() - 1


@operators.assumption_for("aten::scatter.value", "aten::scatter_.value")
def _scatter_ones(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """`zeros.scatter(1, chosen, 1)`: a one for each choice, in a tensor whose zeros are too many to be tracked."""
    target, dim, chosen, value = args
    values = ctx.known_values
    why = assumption_of(chosen)
    if value != 1 or why not in (EVEN_ROUTING, RANDOM_CHOICE) or out.numel() > values.max_assumed_elements:
        return
    ctx.warn_assumed(why)  # scripts sum these ones into sizes that they use in Python
    if values.of(target) is None:
        marked = torch.zeros(out.shape, dtype=out.dtype)
        if out is not target or out.dtype.is_floating_point:  # known values follow writes into integers by themselves
            marked.scatter_(dim, values.of(chosen), 1)
        values.assume(out, marked, why)


@operators.assumption_for(*[name for operator in _RANDOM for name in overload_names(f"aten::{operator}")])
def _mark_random(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    setattr(out.untyped_storage(), _RANDOM_ATTRIBUTE, True)


@operators.assumption_for("aten::masked_fill.Scalar", "aten::masked_fill.Tensor")
def _masked_fill_random(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Random numbers of which some are set so that `topk` never picks them, such as those of padding."""
    if args[0].layout is torch.strided and hasattr(args[0].untyped_storage(), _RANDOM_ATTRIBUTE):
        _mark_random(ctx, func, args, kwargs, out)


def _is_integers(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.dtype is torch.int64 and tensor.numel() > 0


def _scattered_ones(tensor: Any, classes: int) -> Any:
    """As for a tensor that is no subclass; others are compared with all classes (Onehot.cpp)."""
    zeros = torch.zeros((*tensor.shape, classes), dtype=tensor.dtype, device=tensor.device)
    return zeros.scatter_(-1, tensor.unsqueeze(-1), 1)


def even_choices(shape: Sequence[int], choices: int) -> torch.Tensor:
    """Numbers below `choices`, round robin: all equally often, and distinct within a row of at most `choices`."""
    return (torch.arange(math.prod(shape)) % choices).reshape(shape)
