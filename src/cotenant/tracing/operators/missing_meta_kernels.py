"""Operators with a CUDA kernel and without a meta kernel, of synchronized batch norm, quantization-aware training
and sampling from a grid.

Source: aten/src/ATen/native/native_functions.yaml, entries with CUDA and neither Meta nor a composite; the kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.operators.normalization import accumulation_dtype
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides

operators = OperatorTable()


@operators.shape_of(
    "aten::batch_norm_elemt",
    "aten::batch_norm_backward_elemt",
    "aten::_fake_quantize_learnable_per_tensor_affine",
    "aten::_fake_quantize_learnable_per_channel_affine",
    "aten::_masked_softmax",
    "aten::_masked_softmax_backward",
    "aten::glu_jvp",
    "aten::glu_backward_jvp",
)
def _like_first(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return ctx.empty_like(args[0])


@operators.shape_of("aten::fractional_max_pool3d_backward")
def _like_second(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return ctx.empty_like(args[1])


def _empty_vector(ctx: OpContext, count: int, dtype: torch.dtype, device: torch.device) -> Any:
    return ctx.empty_strided((count,), (1,), dtype, device)


@operators.shape_of(
    "aten::batch_norm_stats",
    "aten::batch_norm_gather_stats",
    "aten::batch_norm_gather_stats_with_counts",
    "aten::batch_norm_update_stats",
)
def _batch_norm_stats(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Two statistics per channel, in the accumulation dtype. Source: native/cuda/Normalization.cu."""
    x = args[0]
    return tuple(_empty_vector(ctx, x.shape[1], accumulation_dtype(x), x.fake_device) for _ in range(2))


@operators.shape_of("aten::batch_norm_backward_reduce")
def _batch_norm_backward_reduce(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Two sums, and gradients of weight and bias. Source: the same, `batch_norm_backward_reduce_cuda`."""
    _grad, x, mean, _deviation, weight, for_input, for_weight, for_bias = args
    needed = (for_input, for_input, for_weight and weight is not None, for_bias and weight is not None)
    dtypes = (mean.dtype, mean.dtype, *2 * [None if weight is None else weight.dtype])
    return tuple(
        _empty_vector(ctx, x.shape[1], dtype, x.fake_device) if is_needed else None
        for is_needed, dtype in zip(needed, dtypes, strict=True)
    )


@operators.shape_of(
    "aten::fake_quantize_per_tensor_affine_cachemask",
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "aten::fake_quantize_per_channel_affine_cachemask",
)
def _fake_quantize_cachemask(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(rounded values, mask of those in range). Source: native/quantized/cuda/FakeQuantizeCore.cu."""
    return ctx.empty_like(args[0]), ctx.empty_like(args[0], torch.bool)


@operators.shape_of(
    "aten::_fake_quantize_learnable_per_tensor_affine_backward",
    "aten::_fake_quantize_learnable_per_channel_affine_backward",
)
def _fake_quantize_learnable_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of input, scale and zero point; the latter two have the input's size before they are summed.

    Source: native/quantized/FakeQuantPer{Tensor,Channel}Affine.cpp.
    """
    x, scale = args[1], args[2]
    ctx.keep_until_done(before := [ctx.empty_like(x), ctx.empty_like(x)])
    ctx.record(before)
    return (ctx.empty_like(x), *(_empty_vector(ctx, scale.numel(), scale.dtype, x.fake_device) for _ in range(2)))


@operators.shape_of("aten::geqrf")
def _geqrf(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(column-major matrix, a factor for each column). Source: ATen/native/BatchLinearAlgebra.cpp, `geqrf`."""
    matrix = args[0]
    *lead, rows, columns = matrix.shape
    turned = contiguous_strides((*lead, columns, rows))
    strides = (*turned[:-2], turned[-1], turned[-2])
    factors = (*lead, min(rows, columns))
    return tuple(
        ctx.empty_strided(shape, stride, matrix.dtype, matrix.fake_device)
        for shape, stride in ((matrix.shape, strides), (factors, contiguous_strides(factors)))
    )


@operators.shape_of("aten::is_set_to")
def _is_set_to(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """Whether two tensors are the same part of one storage. Source: native/TensorCompare.cpp, `is_set_to`."""
    one, other = args
    if one.shape != other.shape or one.stride() != other.stride() or one.storage_offset() != other.storage_offset():
        return False
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)


@operators.shape_of("aten::where.self")
def _where(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """A condition of uint8, as before PyTorch 1.2, is cast by the CUDA kernel and refused by the meta kernel.

    Source: native/TensorCompare.cpp, `where_self_out`.
    """
    condition, one, other = args
    if condition.dtype is not torch.uint8:
        return NotImplemented
    device = next(tensor.fake_device for tensor in args if hasattr(tensor, "fake_device"))
    with_bools = ctx.empty_like(condition, torch.bool)
    ctx.keep_until_done([ctx.scratch(condition.numel(), device)])
    return ctx.run_fake(func, (with_bools, one, other), kwargs, device)


@operators.shape_of("aten::cudnn_grid_sampler")
def _cudnn_grid_sampler(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`F.grid_sample` of images, bilinear, padded with zeros, with aligned corners; a CUDA build takes cuDNN for it.

    Source: ATen/native/GridSampler.cpp, `cond_cudnn_grid_sampler`; ATen/native/cudnn/GridSampler.cpp.
    """
    images, grid = args[:2]
    _copy_temporarily(ctx, *filter(_has_zero_strides, (images,)), *_gaps(grid))
    shape = (*images.shape[:2], *grid.shape[1:3])
    return ctx.empty_strided(shape, contiguous_strides(shape), images.dtype, images.fake_device)


@operators.shape_of("aten::cudnn_grid_sampler_backward")
def _cudnn_grid_sampler_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of the images and of the grid. Source: the same."""
    images, grid, gradient = args[:3]
    _copy_temporarily(ctx, *filter(_has_zero_strides, (images, gradient)), *_gaps(grid))
    return tuple(
        ctx.empty_strided(tensor.shape, contiguous_strides(tensor.shape), tensor.dtype, tensor.fake_device)
        for tensor in (images, grid)
    )


def _has_zero_strides(tensor: torch.Tensor) -> bool:
    return 0 in tensor.stride()


def _gaps(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [] if tensor.is_contiguous() else [tensor]


def _copy_temporarily(ctx: OpContext, *tensors: Any) -> None:
    """Contiguous copies for the time of the kernel."""
    copies = [ctx.scratch(tensor.numel() * tensor.element_size(), tensor.fake_device) for tensor in tensors]
    ctx.keep_until_done(copies)
