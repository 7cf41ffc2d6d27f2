"""Copies that equal what they were made of, and the zeros that are their difference, whatever the values are.

Scripts check that weights which they loaded, copied or averaged are equal to others: `(a == b).all()`,
`(a - b).abs().max() < 1e-6`, `a.ne(b).sum()`. The values are not computed, but a copy stays equal to its source until
one of the two is written to.

Contents belong to a storage, and each write gives it new ones. They are compared by identity, with the part of the
storage that a tensor shows. Not known to be equal: results of the same computation, and copies by way of the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import booleans
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_aten = torch.ops.aten
_CONTENTS_ATTRIBUTE = "_cotenant_contents"
_ZERO = "zero"
_COPY = _aten.copy_.default
_FOREACH_COPY = _aten._foreach_copy_.default


def is_zero(tensor: Any) -> bool:
    """Whether all elements are zero because two equal tensors were subtracted."""
    return _is_strided(tensor) and _contents(tensor) is _ZERO


def are_equal(first: Any, second: Any) -> bool:
    """Whether two tensors of one shape are known to have equal elements; NaN aside."""
    if not (_is_strided(first) and _is_strided(second)) or first.shape != second.shape:
        return False
    mine, other = _contents(first), _contents(second)
    if mine is None or other is None:  # neither was copied from the other, but they may be views of one storage
        return mine is other and _is_same_storage(first, second) and _part(first) == _part(second)
    return bool(_key(first, mine) == _key(second, other))


def written(func: OpOverload, args: Args, targets: Iterable[Any]) -> None:
    """The operator has written to `targets`, whose contents are new, or those of what was copied."""
    if func is _COPY:
        _link(args[0], args[1])
    elif func is _FOREACH_COPY:
        for target, source in zip(args[0], args[1], strict=True):
            _link(target, source)
    else:
        for target in targets:
            forget(target)


def forget(tensor: Any) -> None:
    """The contents have changed."""
    if _is_strided(tensor):
        storage = tensor.untyped_storage()
        if getattr(storage, _CONTENTS_ATTRIBUTE, None) is not None:
            setattr(storage, _CONTENTS_ATTRIBUTE, object())


@operators.assumption_for("aten::clone", "aten::_to_copy")
def _copied(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    _link(out, args[0])


@operators.assumption_for("aten::sub.Tensor", "aten::mse_loss", "aten::dist")
def _difference(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    if kwargs.get("alpha", 1) == 1 and are_equal(args[0], args[1]):
        _set_zero(out)


@operators.assumption_for("aten::eq.Tensor", "aten::ne.Tensor")
def _comparison(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    if are_equal(args[0], args[1]):
        _set_all(ctx, out, func is _aten.eq.Tensor)


@operators.assumption_for(
    "aten::eq.Scalar", "aten::ne.Scalar", "aten::lt.Scalar", "aten::le.Scalar", "aten::gt.Scalar", "aten::ge.Scalar"
)
def _comparison_with_number(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    if is_zero(args[0]):
        _set_all(ctx, out, bool(func(torch.zeros(()), args[1])))


@operators.assumption_for(
    "aten::abs", "aten::neg", "aten::sqrt", "aten::pow.Tensor_Scalar", "aten::mul.Tensor", "aten::div.Tensor",
    "aten::sum", "aten::sum.dim_IntList", "aten::mean", "aten::mean.dim", "aten::max", "aten::max.dim", "aten::amax",
    "aten::min", "aten::amin", "aten::linalg_vector_norm", "aten::norm.Scalar", "aten::norm.ScalarOpt_dim",
    "aten::_foreach_norm.Scalar", "aten::stack", "aten::cat",
)  # fmt: skip
def _stay_zero(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    first = args[0]
    if isinstance(first, FakeTensor):
        if not is_zero(first) or (func is _aten.pow.Tensor_Scalar and args[1] <= 0):
            return
        _set_zero(out[0] if isinstance(out, (tuple, list)) else out)
    elif func is _aten._foreach_norm.Scalar:
        for source, norm in zip(first, out, strict=True):
            if is_zero(source):
                _set_zero(norm)
    elif isinstance(first, (list, tuple)) and first and all(is_zero(tensor) for tensor in first):
        _set_zero(out)


def _link(target: Any, source: Any) -> None:
    """`target` was copied from `source`."""
    if not _is_strided(target):
        return
    if not _is_strided(source) or source.dtype is not target.dtype or source.shape != target.shape:
        forget(target)
        return
    contents = _contents(source)
    if contents is None:
        contents = object()
        setattr(source.untyped_storage(), _CONTENTS_ATTRIBUTE, contents)
    if contents is not _ZERO or not _covers_storage(target):
        contents = (_part(target), _key(source, contents))
    setattr(target.untyped_storage(), _CONTENTS_ATTRIBUTE, contents)


def _set_all(ctx: OpContext, out: FakeTensor, value: bool) -> None:
    """All elements of a comparison have one value."""
    if not ctx.known_values.set_all(out, value):
        booleans.assume(out, value)
        if not value:
            _set_zero(out)  # so that they are counted


def _set_zero(tensor: Any) -> None:
    if _is_strided(tensor):
        setattr(tensor.untyped_storage(), _CONTENTS_ATTRIBUTE, _ZERO)


def _key(tensor: FakeTensor, contents: Any) -> Any:
    """What equal tensors have in common: of a whole copy, the key of its source."""
    if contents is _ZERO:
        return _ZERO
    part = _part(tensor)
    return contents[1] if isinstance(contents, tuple) and contents[0] == part else (contents, part)


def _part(tensor: FakeTensor) -> Any:
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _covers_storage(tensor: FakeTensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _contents(tensor: FakeTensor) -> Any:
    return getattr(tensor.untyped_storage(), _CONTENTS_ATTRIBUTE, None)


def _is_same_storage(first: FakeTensor, second: FakeTensor) -> bool:
    return bool(first.untyped_storage()._cdata == second.untyped_storage()._cdata)


def _is_strided(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.layout is torch.strided
