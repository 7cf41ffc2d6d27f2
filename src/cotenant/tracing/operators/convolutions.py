"""Convolutions, with the layouts that cuDNN's path has; `library_calls` records copies of operands.

PyTorch's meta kernel selects the backend by what this build has. A CPU build has no cuDNN, and so it would drop the
channels-last format.
Source: aten/src/ATen/native/Convolution.cpp, `determine_backend_memory_format`, `convolution_backward`;
ATen/native/ConvUtils.h, `cudnn_conv_suggest_memory_format`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import memory_format_strides, suggested_format

operators = OperatorTable()


def convolution_format(x: Any, w: Any) -> torch.memory_format:
    """The memory format that the operands are brought into."""
    # ConvUtils.h, `_conv_suggest_memory_format_impl`: one operand in channels-last is enough.
    if torch.backends.cudnn.enabled:
        for operand in (x, w):
            if (found := suggested_format(operand)) is not torch.contiguous_format:
                return found
    return torch.contiguous_format


def _is_supported(x: Any, w: Any) -> bool:
    """Whether the call is valid and modeled; for others the meta kernel raises PyTorch's own errors."""
    return (
        isinstance(x, FakeTensor)
        and isinstance(w, FakeTensor)
        and x.dim() == w.dim() >= 3
        and x.dtype == w.dtype
        and x.numel() > 0
    )


def _new(ctx: OpContext, shape: Any, like: Any, memory_format: torch.memory_format) -> FakeTensor:
    shape = tuple(shape)
    return ctx.empty_strided(shape, memory_format_strides(shape, memory_format), like.dtype, like.device)


def copies_in_format(ctx: OpContext, memory_format: torch.memory_format, *tensors: Any) -> list[FakeTensor]:
    """Record copies of the tensors that have another memory format. They are freed with the last reference."""
    made = []
    for tensor in tensors:
        if not tensor.is_contiguous(memory_format=memory_format):
            made.append(_new(ctx, tensor.shape, tensor, memory_format))
            ctx.record(made[-1])
    return made


def copy_in_format(ctx: OpContext, memory_format: torch.memory_format, tensor: Any) -> FakeTensor:
    """Record a copy in a memory format, which `Tensor.to` makes of a tensor whose strides suggest another one.

    It copies images of one pixel too, although they are contiguous in both.

    Source: ATen/native/TensorConversions.cpp, `to_will_alias`.
    """
    copy = _new(ctx, tensor.shape, tensor, memory_format)
    ctx.record(copy)
    return copy


@operators.shape_of("aten::convolution")
def _forward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    x, w, bias, stride, padding, dilation, transposed, output_padding, groups = args
    channels = w.shape[1] * groups if transposed else w.shape[0]
    if not _is_supported(x, w) or x.shape[1] != (w.shape[0] if transposed else w.shape[1] * groups):
        return NotImplemented
    if bias is not None and bias.dtype != x.dtype:
        return NotImplemented
    sides = []
    # A list of one number stands for all dimensions: native/utils/ParamUtils.h, `expand_param_if_needed`.
    for i, (size, kernel) in enumerate(zip(x.shape[2:], w.shape[2:], strict=True)):
        s, p, d = (values[i if len(values) > 1 else 0] for values in (stride, padding, dilation))
        reach = d * (kernel - 1) + 1
        if transposed:
            extra = output_padding[i if len(output_padding) > 1 else 0]
            sides.append((size - 1) * s - 2 * p + reach + extra)
        else:
            sides.append((size + 2 * p - reach) // s + 1)
    if min(sides) <= 0:
        return NotImplemented
    layout = convolution_format(x, w)
    return _new(ctx, (x.shape[0], channels, *sides), x, layout)


@operators.shape_of("aten::convolution_backward")
def _backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of input, weight and bias."""
    grad, x, w, *_rest, mask = args
    if not _is_supported(x, w) or not isinstance(grad, FakeTensor) or not math.prod(grad.shape):
        return NotImplemented
    layout = convolution_format(x, w)
    grad_x = _new(ctx, x.shape, x, layout) if mask[0] else None
    grad_w = _new(ctx, w.shape, w, layout) if mask[1] else None
    grad_b = _new(ctx, (grad.shape[1],), grad, torch.contiguous_format) if mask[2] else None
    return grad_x, grad_w, grad_b
