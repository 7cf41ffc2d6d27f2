"""Which expert gets which token: believed to be shared out evenly, where a mixture of experts asks its router.

Nobody computes the scores, but what the choices add up to is sure: every token goes to `k` of the experts. Even shares
keep that sum; taking every expert to get every token, as for other unknown sizes, would multiply it. A real router is
uneven, which moves bytes between experts and leaves their sum as it is.

Of random numbers alone, `topk` draws a mask (as masked autoencoders do), of which nothing but the count matters: it is
believed in the same way, and not told.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import EVEN_ROUTING, RANDOM_CHOICE, KnownValues, assumption_of

_MAX_EXPERTS = 1024
_RANDOM_ATTRIBUTE = "_cotenant_drawn"
_RANDOM_OPERATORS = ("rand", "randn", "rand_like", "randn_like", "uniform_", "normal_", "exponential_")
_aten = torch.ops.aten


def install(values: KnownValues) -> None:
    """Follow `one_hot`, which takes its steps on tensors of sizes that are not followed otherwise."""
    original: Any = torch.nn.functional.one_hot

    def one_hot(tensor: Any, num_classes: int = -1) -> Any:
        made = original(tensor, num_classes)
        if not (isinstance(tensor, FakeTensor) and isinstance(made, FakeTensor) and 1 < num_classes <= _MAX_EXPERTS):
            return made
        if values.of(tensor) is None and tensor.numel():
            values.assume(tensor, _even_choices(tensor.shape, num_classes), EVEN_ROUTING)
        known = values.of(tensor)
        if known is not None and values.of(made) is None and made.numel() <= values.max_assumed_elements:
            values.assume(made, original(known, num_classes), EVEN_ROUTING)
        return made

    torch.nn.functional.one_hot = torch._C._nn.one_hot = one_hot


def _topk(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`topk` over the last dimension of many rows, of which each chooses the next `k`, beginning again at the end."""
    source, k = args[0], args[1]
    device = source.device
    out = mode.run_fake(func, args, kwargs, device)
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    choices = source.shape[-1] if source.dim() else 0
    few = 1 < choices <= _MAX_EXPERTS and k < choices
    if few and source.dim() > 1 and source.numel() > choices and dim % source.dim() == source.dim() - 1:
        indices = out[1]
        if mode.values.of(source) is None and indices.numel() <= mode.values.max_assumed_elements:
            drawn = hasattr(source.untyped_storage(), _RANDOM_ATTRIBUTE) and not source.requires_grad
            why = RANDOM_CHOICE if drawn else EVEN_ROUTING
            mode.values.assume(indices, _even_choices(indices.shape, choices), why)
    return out


def _scatter_ones(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`zeros.scatter(1, chosen, 1)`: a one for each choice, in a tensor too big for its zeros to be known."""
    target, dim, chosen, value = args
    out = target if func._opname.endswith("_") else mode.run_fake(func, args, kwargs, target.device)
    values = mode.values
    why = assumption_of(chosen)
    if value != 1 or why not in (EVEN_ROUTING, RANDOM_CHOICE) or out.numel() > values.max_assumed_elements:
        return out
    mode.warn_assumed(why)  # what is counted so becomes sizes in Python
    if values.of(target) is None:
        marked = torch.zeros(out.shape, dtype=out.dtype)
        if out is not target or out.dtype.is_floating_point:  # of integers, what is written is followed
            marked.scatter_(dim, values.of(chosen), 1)
        values.assume(out, marked, why)
    return out


def _mark_random(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    mode.note(out)
    setattr(out.untyped_storage(), _RANDOM_ATTRIBUTE, True)


def _masked_fill_random(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Random numbers of which some, such as those of padding, are never the largest."""
    if args[0].layout is torch.strided and hasattr(args[0].untyped_storage(), _RANDOM_ATTRIBUTE):
        _mark_random(mode, func, args, kwargs, out)
    else:
        mode.note(out)


def _even_choices(shape: Any, choices: int) -> torch.Tensor:
    """Numbers below `choices`, in turn: all equally often, and different ones in a row that is shorter."""
    return (torch.arange(math.prod(shape)) % choices).reshape(shape)


SHAPE_FUNCTIONS: dict[Any, Any] = {
    _aten.topk.default: _topk,
    _aten.scatter.value: _scatter_ones,
    _aten.scatter_.value: _scatter_ones,
}
RECORDERS: dict[Any, Any] = {
    **{
        getattr(getattr(_aten, name), each): _mark_random
        for name in _RANDOM_OPERATORS
        for each in getattr(_aten, name).overloads()
    },
    _aten.masked_fill.Scalar: _masked_fill_random,
    _aten.masked_fill.Tensor: _masked_fill_random,
}
