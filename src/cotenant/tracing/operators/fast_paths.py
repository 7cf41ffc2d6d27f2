"""Factories, views and matrix products: so frequent that PyTorch's meta kernels would take most of the time.

Each function answers the ordinary call and leaves the rest, errors included, to the meta kernel.
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

_as_strided = torch.ops.aten.as_strided.default

FACTORIES = frozenset(
    {
        "arange",
        "empty",
        "empty_like",
        "empty_strided",
        "eye",
        "full",
        "full_like",
        "linspace",
        "logspace",
        "new_empty",
        "new_empty_strided",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "randperm",
        "scalar_tensor",
        "tril_indices",
        "triu_indices",
        "zeros",
        "zeros_like",
    }
)
"""Names of operators that make a tensor without tensor arguments, or of the shape of one."""
_META_OPTIONS = {"device": torch.device("meta"), "pin_memory": None, "generator": None}


def factory(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, device: torch.device) -> Any:
    """A new tensor on `device`, or where the call says: the meta kernel makes it, and the shape is cached."""
    wanted = kwargs.get("device")
    if wanted is not None and torch.device(wanted).type != "cuda":
        return _made_elsewhere(func, args, kwargs)
    key = ctx.meta_cache.key_of(func, args, kwargs, device)
    if key is not None:
        out = ctx.meta_cache.find(ctx, key, args, device)
        if out is not NotImplemented:
            return out
    kwargs = {**kwargs, **{name: value for name, value in _META_OPTIONS.items() if name in kwargs}}
    out = ctx.wrap(run_meta_kernel(ctx.fake, func, *args, **kwargs), device)
    if key is not None:
        ctx.meta_cache.put(key, args, out)
    return out


def _made_elsewhere(func: OpOverload, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """A real tensor on the CPU, or one without data, of the shape of one on the GPU: `empty_like(x, device="cpu")`."""
    like = [
        torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device="meta")
        if isinstance(arg, FakeTensor)
        else arg
        for arg in args
    ]
    made: torch.Tensor = func(*like, **kwargs)
    return made


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
    else:  # a view of a slice, such as the queries in a fused projection of queries, keys and values
        strides = view_strides(source, shape)
    return NotImplemented if strides is None else view_of(ctx, source, shape, strides, source.storage_offset())


def view_of(ctx: OpContext, source: FakeTensor, shape: Any, strides: Any, offset: int) -> FakeTensor:
    """A view of `source`, with its shape, strides and offset in elements."""
    return ctx.wrap(run_meta_kernel(ctx.fake, _as_strided, source, shape, strides, offset), source.fake_device)


@operators.shape_of("aten::slice.Tensor")
def _slice(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Source: aten/src/ATen/native/TensorShape.cpp, `slice`."""
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


def _clamp_index(index: int, low: int, size: int) -> int:
    """An index into a dimension, counted from the end if negative, clamped to low..size."""
    return min(max(index + size if index < 0 else index, low), size)


@operators.shape_of("aten::select.int")
def _select(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Source: aten/src/ATen/native/TensorShape.cpp, `select`."""
    source, dim, index = args
    if not _is_strided_cuda(source) or not -source.dim() <= dim < source.dim():
        return NotImplemented
    dim %= source.dim()
    shape, strides = source.shape, source.stride()
    if not -shape[dim] <= index < shape[dim]:
        return NotImplemented
    offset = source.storage_offset() + index % shape[dim] * strides[dim]
    rest = [other for other in range(source.dim()) if other != dim]
    return view_of(ctx, source, [shape[other] for other in rest], [strides[other] for other in rest], offset)


@operators.shape_of("aten::select_backward", "aten::slice_backward")
def _backward_of_part(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Zeros of the whole size. A loop over time steps has another index, and so another cached result, in each.

    Source: aten/src/ATen/native/TensorShape.cpp, `select_backward_symint`, `slice_backward`.
    """
    gradient, shape = args[:2]
    if kwargs or not _is_strided_cuda(gradient):
        return NotImplemented
    return ctx.empty_strided(shape, contiguous_strides(shape), gradient.dtype, gradient.fake_device)


@operators.shape_of("aten::embedding")
def _embedding(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    table, indices = args[:2]
    if not (_is_strided_cuda(table) and _is_strided_cuda(indices)) or table.fake_device != indices.fake_device:
        return NotImplemented
    if table.dim() != 2 or indices.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    shape = (*indices.shape, table.shape[1])
    return ctx.empty_strided(shape, contiguous_strides(shape), table.dtype, table.fake_device)


def _is_strided_cuda(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.layout is torch.strided and tensor.fake_device.type == "cuda"


@operators.shape_of("aten::_softmax", "aten::_log_softmax")
def _softmax(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Always a new contiguous result. The meta kernel's first conversion imports `torch.distributed.tensor`: 0.3 s."""
    source, dim, half_to_float = args
    if kwargs or half_to_float or not _is_strided_cuda(source) or not -source.dim() <= dim < source.dim():
        return NotImplemented
    if not source.dtype.is_floating_point or not source.numel():
        return NotImplemented
    return ctx.empty_strided(source.shape, contiguous_strides(source.shape), source.dtype, source.fake_device)


@operators.shape_of("aten::mm", "aten::bmm", "aten::addmm")
def _matmul(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Always a new contiguous result."""
    first, second = args[-2], args[-1]
    if kwargs and any(value != 1 for key, value in kwargs.items() if key in ("beta", "alpha", "out_dtype", "out")):
        return NotImplemented
    if not all(isinstance(arg, FakeTensor) and arg.fake_device == first.fake_device for arg in args):
        return NotImplemented
    if any(arg.dtype != first.dtype or arg.layout is not torch.strided for arg in args):
        return NotImplemented
    if first.dim() != second.dim() or first.shape[-1] != second.shape[-2] or first.shape[:-2] != second.shape[:-2]:
        return NotImplemented
    shape = (*first.shape[:-1], second.shape[-1])
    if len(args) == 3 and tuple(args[0].shape) not in (shape, shape[-1:]):
        return NotImplemented
    return ctx.empty_strided(shape, contiguous_strides(shape), first.dtype, first.fake_device)
