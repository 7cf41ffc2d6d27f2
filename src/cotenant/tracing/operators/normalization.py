"""Layer and group normalizations, dropout and the gradient of log-softmax: dtypes, layouts and scratch of CUDA."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format

from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides

operators = OperatorTable()


@operators.shape_of("aten::native_layer_norm")
def _layer_norm(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(output, mean, inverse deviation), all contiguous. Source: ATen/native/cuda/layer_norm_kernel.cu."""
    x, shape = args[0], args[1]
    lead = tuple(x.shape[: x.dim() - len(shape)]) + (1,) * len(shape)
    out = ctx.empty_strided(x.shape, contiguous_strides(x.shape), x.dtype, x.fake_device)
    dtype = accumulation_dtype(x)
    stats = [ctx.empty_strided(lead, contiguous_strides(lead), dtype, x.fake_device) for _ in range(2)]
    return (out, *stats)


@operators.shape_of("aten::native_layer_norm_backward")
def _layer_norm_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of input, weight and bias."""
    _grad, x, _shape, _mean, _rstd, weight, bias, mask = args
    grad_x = ctx.empty_strided(x.shape, contiguous_strides(x.shape), x.dtype, x.fake_device) if mask[0] else None
    grad_w = ctx.empty_like(weight) if mask[1] and weight is not None else None
    grad_b = ctx.empty_like(bias) if mask[2] and bias is not None else None
    return (grad_x, grad_w, grad_b)


@operators.shape_of("aten::_fused_rms_norm")
def _rms_norm(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(output, inverse root mean square), both contiguous. Source: layer_norm_kernel.cu, `_fused_rms_norm_cuda`.

    Without a shape function the operator would be decomposed, as native_functions.yaml has a CompositeImplicitAutograd
    entry beside the CUDA kernel. `rms_norm` decomposes channels-last inputs and weights of another dtype everywhere.
    """
    x, shape = args[0], args[1]
    lead = tuple(x.shape[: x.dim() - len(shape)]) + (1,) * len(shape)
    out = ctx.empty_strided(x.shape, contiguous_strides(x.shape), x.dtype, x.fake_device)
    return (out, ctx.empty_strided(lead, contiguous_strides(lead), accumulation_dtype(x), x.fake_device))


@operators.shape_of("aten::_fused_rms_norm_backward")
def _rms_norm_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of input and weight. Source: layer_norm_kernel.cu, `_fused_rms_norm_backward_cuda`."""
    _grad, x, _shape, _rstd, weight, mask = args
    grad_x = ctx.empty_strided(x.shape, contiguous_strides(x.shape), x.dtype, x.fake_device) if mask[0] else None
    return (grad_x, ctx.empty_like(weight) if mask[1] and weight is not None else None)


@operators.recorder_of("aten::native_group_norm")
def _record_group_norm(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Statistics in float32, and a scale and a shift for each channel of each image.

    Source: ATen/native/cuda/group_norm_kernel.cu, `GroupNormKernelImplInternal`.
    """
    x, weight, bias, batch, channels, pixels, groups = args[:7]
    ctx.record(out)
    numbers = [batch * groups] * 2 if accumulation_dtype(x) is not x.dtype else []
    if pixels > 1 and (weight is not None or bias is not None):
        numbers += [batch * channels] * 2
    itemsize = accumulation_dtype(x).itemsize
    ctx.keep_until_done([ctx.scratch(count * itemsize, x.device) for count in numbers])


@operators.recorder_of("aten::native_group_norm_backward")
def _record_group_norm_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The gradient in the format of the input, sums for each channel of each image, and the factors of the result.

    Source: group_norm_kernel.cu, `GroupNormBackwardKernelImplInternal`; group_norm.cpp, `native_group_norm_backward`.
    """
    grad, x, weight, batch, channels, pixels, groups, mask = args[0], args[1], args[4], *args[5:10]
    if not grad.is_contiguous(memory_format=suggest_memory_format(x)):
        ctx.keep_until_done([ctx.scratch(grad.numel() * grad.element_size(), grad.device)])
    ctx.record(out)
    numbers = [batch * channels] * 2
    if mask[0]:
        numbers += [batch * groups] * 2
        if pixels > 1 and weight is not None:
            numbers.append(batch * channels)
    itemsize = accumulation_dtype(x).itemsize
    ctx.keep_until_done([ctx.scratch(count * itemsize, x.device) for count in numbers])


@operators.shape_of("aten::_log_softmax_backward_data")
def _log_softmax_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Contiguous, whatever the strides of the gradient; PyTorch's decomposition, its meta kernel, keeps those.

    Source: ATen/native/SoftMax.cpp, TORCH_META_FUNC(log_softmax_backward_data).
    """
    grad = args[0]
    return ctx.empty_strided(grad.shape, contiguous_strides(grad.shape), args[3], grad.fake_device)


@operators.shape_of("aten::native_dropout")
def _dropout(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(output, mask); CUDA allocates the mask first. Source: ATen/native/cuda/Dropout.cu, `dropout_cuda`."""
    x, _p, train = args
    if train is False or x.numel() == 0:
        return NotImplemented
    mask = ctx.empty_like(x, torch.bool)
    ctx.record(mask)
    return (ctx.empty_like(x), mask)


@operators.shape_of("aten::native_dropout_backward")
def _dropout_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    grad, mask = args[0], args[1]
    return ctx.empty_like(grad) if grad.shape == mask.shape and grad.stride() == mask.stride() else NotImplemented


def accumulation_dtype(x: torch.Tensor) -> torch.dtype:
    """The dtype of CUDA's statistics: float32 for half precision, else the input's. Source: ATen/AccumulateType.h."""
    return torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
