"""Operators so common that their general way would cost most of the time: factories, views, products, elementwise.

Each answers only for the ordinary case and leaves the rest, errors included, to the general way.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.meta_kernels import run_meta_kernel
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides, view_strides

operators = OperatorTable()

_aten = torch.ops.aten
_as_strided = _aten.as_strided.default

FACTORIES = frozenset(
    (
        *("arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace", "logspace"),
        *(
            "new_empty",
            "new_empty_strided",
            "new_full",
            "new_ones",
            "new_zeros",
            "ones",
            "ones_like",
            "rand",
            "rand_like",
        ),
        *(
            "randint",
            "randint_like",
            "randn",
            "randn_like",
            "randperm",
            "scalar_tensor",
            "tril_indices",
            "triu_indices",
        ),
        *("zeros", "zeros_like"),
    )
)
_META_OPTIONS = {"device": torch.device("meta"), "pin_memory": None, "generator": None}


def factory(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, device: torch.device) -> Any:
    """A new tensor on `device`, made by the meta kernel."""
    known = ctx.meta_cache.key_of(func, args, kwargs, device)
    if known is not None:
        out = ctx.meta_cache.find(ctx, known, args, device)
        if out is not NotImplemented:
            return out
    kwargs = {**kwargs, **{key: value for key, value in _META_OPTIONS.items() if key in kwargs}}
    out = ctx.wrap(run_meta_kernel(ctx.fake, func, *args, **kwargs), device)
    if known is not None:
        ctx.meta_cache.put(known, args, out)
    return out


@operators.shape_of("aten::view", "aten::_unsafe_view")
def _view(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    source, shape = args
    if not _is_strided_cuda(source):
        return NotImplemented
    shape = list(shape)
    if -1 in shape:
        rest = -math.prod(shape)
        if rest <= 0 or source.numel() % rest:
            return NotImplemented
        shape[shape.index(-1)] = source.numel() // rest
    if math.prod(shape) != source.numel() or min(shape, default=1) < 0:
        return NotImplemented
    if tuple(shape) == source.shape:
        strides = source.stride()
    elif source.is_contiguous():
        strides = contiguous_strides(shape)
    else:  # of a part, such as the queries in a product for queries, keys and values
        strides = view_strides(source, shape)
    return NotImplemented if strides is None else view_of(ctx, source, shape, strides, source.storage_offset())


def view_of(ctx: OpContext, source: FakeTensor, shape: Any, strides: Any, offset: int) -> FakeTensor:
    """A view of `source`."""
    return ctx.wrap(run_meta_kernel(ctx.fake, _as_strided, source, shape, strides, offset), source.fake_device)


@operators.shape_of("aten::slice.Tensor")
def _slice(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """A range of a dimension. Source: aten/src/ATen/native/TensorShape.cpp, `slice`."""
    defaults: tuple[Any, ...] = (0, None, None, 1)
    source, dim, start, end, step = tuple(args) + defaults[len(args) - 1 :]
    if kwargs or not _is_strided_cuda(source) or not -source.dim() <= dim < source.dim() or step < 1:
        return NotImplemented
    shape, strides = list(source.shape), list(source.stride())
    size = shape[dim]
    start = _clamp_index(0 if start is None else start, 0, size)
    end = _clamp_index(size if end is None else end, start, size)
    offset = source.storage_offset() + start * strides[dim]
    shape[dim] = -(-(end - start) // step)
    strides[dim] *= step
    return view_of(ctx, source, shape, strides, offset)


def _clamp_index(place: int, least: int, size: int) -> int:
    """A place in a dimension, counted from the end if negative, moved into least..size."""
    return min(max(place + size if place < 0 else place, least), size)


@operators.shape_of("aten::select.int")
def _select(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """One place of a dimension, which goes. Source: aten/src/ATen/native/TensorShape.cpp, `select`."""
    source, dim, index = args
    if not _is_strided_cuda(source) or not -source.dim() <= dim < source.dim():
        return NotImplemented
    dim %= source.dim()
    shape, strides = source.shape, source.stride()
    if not -shape[dim] <= index < shape[dim]:
        return NotImplemented
    offset = source.storage_offset() + index % shape[dim] * strides[dim]
    rest = [each for each in range(source.dim()) if each != dim]
    return view_of(ctx, source, [shape[each] for each in rest], [strides[each] for each in rest], offset)


@operators.shape_of("aten::embedding")
def _embedding(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Rows of a table, by number."""
    table, numbers = args[:2]
    if (
        not (_is_strided_cuda(table) and _is_strided_cuda(numbers))
        or table.dim() != 2
        or table.fake_device != numbers.fake_device
    ):
        return NotImplemented
    if numbers.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    shape = (*numbers.shape, table.shape[1])
    return ctx.empty_strided(shape, contiguous_strides(shape), table.dtype, table.fake_device)


def _is_strided_cuda(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.layout is torch.strided and tensor.fake_device.type == "cuda"


@operators.shape_of(
    "aten::add.Tensor",
    "aten::sub.Tensor",
    "aten::mul.Tensor",
    "aten::div.Tensor",
    "aten::neg",
    "aten::gelu",
    "aten::gelu_backward",
    "aten::relu",
    "aten::threshold_backward",
    "aten::sigmoid",
    "aten::sigmoid_backward",
    "aten::silu",
    "aten::tanh",
    "aten::tanh_backward",
    "aten::pow.Tensor_Scalar",
)
def _elementwise(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Elementwise over tensors of one shape, type and layout, and numbers that do not change the type."""
    first = args[0]
    if not isinstance(first, FakeTensor) or first.layout is not torch.strided or not first.dtype.is_floating_point:
        return NotImplemented
    if any(value is not None for key, value in kwargs.items() if key not in ("alpha", "approximate")):
        return NotImplemented
    for each in args[1:]:
        if isinstance(each, torch.Tensor):
            if not isinstance(each, FakeTensor) or each.fake_device != first.fake_device:
                return NotImplemented
            if each.dtype != first.dtype or each.shape != first.shape or each.stride() != first.stride():
                return NotImplemented
        elif isinstance(each, complex):
            return NotImplemented
    return ctx.empty_like(first)


@operators.shape_of("aten::native_dropout_backward")
def _dropout_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    grad, mask = args[0], args[1]
    return ctx.empty_like(grad) if grad.shape == mask.shape and grad.stride() == mask.stride() else NotImplemented


@operators.shape_of("aten::mm", "aten::bmm", "aten::addmm")
def _matmul(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`mm`, `bmm`, and `addmm`, whose result is always new and row-major."""
    first, second = args[-2], args[-1]
    if kwargs and any(value != 1 for key, value in kwargs.items() if key in ("beta", "alpha", "out_dtype", "out")):
        return NotImplemented
    if not all(isinstance(each, FakeTensor) and each.fake_device == first.fake_device for each in args):
        return NotImplemented
    if any(each.dtype != first.dtype or each.layout is not torch.strided for each in args):
        return NotImplemented
    if first.dim() != second.dim() or first.shape[-1] != second.shape[-2] or first.shape[:-2] != second.shape[:-2]:
        return NotImplemented
    shape = (*first.shape[:-1], second.shape[-1])
    if len(args) == 3 and tuple(args[0].shape) not in (shape, shape[-1:]):
        return NotImplemented
    return ctx.empty_strided(shape, contiguous_strides(shape), first.dtype, first.fake_device)


_ELEMENTWISE = (
    _aten.add.Tensor,
    _aten.sub.Tensor,
    _aten.mul.Tensor,
    _aten.div.Tensor,
    _aten.neg.default,
    _aten.gelu.default,
    _aten.gelu_backward.default,
    _aten.relu.default,
    _aten.threshold_backward.default,
    _aten.sigmoid.default,
    _aten.sigmoid_backward.default,
    _aten.silu.default,
    _aten.tanh.default,
    _aten.tanh_backward.default,
    _aten.pow.Tensor_Scalar,
)
