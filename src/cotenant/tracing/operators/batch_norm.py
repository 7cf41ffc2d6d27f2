"""Batch normalization: its results, and what the kernels of cuDNN and of PyTorch allocate beside them.

PyTorch's meta kernel stands for both: a CPU build has no cuDNN. Each order and size here was seen on a null GPU with
torch 2.13 (decision 0025).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.normalization import accumulation_dtype
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import suggested_format

operators = OperatorTable()

_FLOAT_BYTES = 4
_BLOCK_THREADS, _BLOCK_WIDTH = 512, 32
_ELEMENTS_PER_THREAD = 16
_MIN_GRID_ROWS, _MAX_GRID_ROWS = 8, 128
_MAX_CUDNN_BATCH, _MAX_CUDNN_EVAL_BATCH = 880_801, 65_535


@operators.shape_of("aten::native_batch_norm")
def _forward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(output, saved mean, saved inverse deviation); the statistics have the accumulation dtype.

    In training it writes to the running mean and variance, which its schema in native_functions.yaml does not say.
    PyTorch's own kernel saves statistics in evaluation as well, cuDNN's does not.
    """
    x, weight, bias, mean, variance, training = args[:6]
    if training:
        ctx.known_values.forget(mean)
        ctx.known_values.forget(variance)
    saves = training or not runs_on_cudnn(x, weight, bias, training=False)
    channels = (x.shape[1],) if saves else (0,)
    saved = [ctx.empty_strided(channels, (1,), accumulation_dtype(x), x.fake_device) for _ in range(2)]
    return (ctx.empty_like(x), *saved)


@operators.recorder_of("aten::native_batch_norm")
def _record_forward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Source: ATen/native/cuda/Normalization.cuh, `batch_norm_stats_channels_last_cuda_template`."""
    x, weight, bias, training = args[0], args[1], args[2], args[5]
    ctx.record(out)
    if training and not runs_on_cudnn(x, weight, bias, training=True) and _has_channels_last_kernel(x):
        _staging(ctx, x, sums=4)


@operators.shape_of("aten::native_batch_norm_backward")
def _backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradients of input, weight and bias."""
    grad, x, weight, mask = args[0], args[1], args[2], args[9]
    dtype = weight.dtype if weight is not None else x.dtype
    channels = (x.shape[1],)
    grad_x = ctx.empty_like(x) if mask[0] else None
    pair = [ctx.empty_strided(channels, (1,), dtype, grad.fake_device) if wanted else None for wanted in mask[1:3]]
    return (grad_x, *pair)


@operators.recorder_of("aten::native_batch_norm_backward")
def _record_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """With cuDNN the gradient has the format of the input; a channels-last kernel sums first.

    Source: ATen/native/cudnn/BatchNorm.cpp, `cudnn_batch_norm_backward`; Normalization.cu, `batch_norm_backward_cuda`.
    """
    grad, x, weight, training, mask = args[0], args[1], args[2], args[7], args[9]
    on_cudnn = runs_on_cudnn(x, weight, weight, training=training)
    if training and on_cudnn:
        layout = suggested_format(x)
        if not grad.is_contiguous(memory_format=layout):
            ctx.keep_until_done([ctx.scratch(grad.numel() * grad.element_size(), grad.device)])
        ctx.record(out)
        return
    if not _has_channels_last_kernel(x) or not (training or mask[1] or mask[2]):
        ctx.record(out)
        return
    # In evaluation cuDNN's forward pass saves no inverse deviation (aten/src/ATen/native/cudnn/BatchNorm.cpp).
    sums = 2 if training or not on_cudnn else 3
    ctx.keep_until_done([ctx.scratch(x.shape[1] * _FLOAT_BYTES, x.device) for _ in range(sums)])
    ctx.record(out[1:])
    _staging(ctx, x, sums=2)
    ctx.record(out[0])


def runs_on_cudnn(x: Any, weight: Any, bias: Any, *, training: bool) -> bool:
    """Whether cuDNN normalizes. Source: ATen/native/Normalization.cpp, `_select_batch_norm_backend`.

    Not modeled: running statistics that only one of mean and variance has.
    """
    if weight is None or bias is None or x.dim() < 3 or not torch.backends.cudnn.enabled:
        return False
    if torch.bfloat16 in (x.dtype, weight.dtype) or (x.dtype is torch.float16 and weight.dtype is not torch.float32):
        return False
    return int(x.shape[0]) <= (_MAX_CUDNN_BATCH if training else _MAX_CUDNN_EVAL_BATCH)


def _has_channels_last_kernel(x: FakeTensor) -> bool:
    """Source: ATen/native/cuda/Normalization.cu, `batch_norm_use_channels_last_kernels`."""
    if x.dim() in (4, 5):
        return x.is_contiguous(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)
    return x.is_contiguous() and x.stride(1) == 1


def _staging(ctx: OpContext, x: FakeTensor, *, sums: int) -> None:
    """Partial sums of several blocks for each channel, and a semaphore for each column of blocks; freed at once.

    Source: ATen/native/cuda/Normalization.cuh, `flexible_launch_configs` and its callers.
    """
    channels = int(x.shape[1])
    rows = x.numel() // max(1, channels)
    width = min(_power_of_2(channels), _BLOCK_WIDTH)
    height = min(_power_of_2(-(-rows // _ELEMENTS_PER_THREAD)), _BLOCK_THREADS // width)
    if width * height != _BLOCK_THREADS:
        width = min(_power_of_2(channels), _BLOCK_THREADS // height)
    grid_rows = min(-(-rows // (height * _ELEMENTS_PER_THREAD)), _MAX_GRID_ROWS)
    if grid_rows < _MIN_GRID_ROWS:
        return
    partial = ctx.scratch(sums * channels * grid_rows * _FLOAT_BYTES, x.device)
    semaphores = ctx.scratch(-(-channels // width) * _FLOAT_BYTES, x.device)
    del semaphores, partial


def _power_of_2(count: int) -> int:
    """The largest power of two that is not larger than `count`."""
    return 1 << (max(1, count).bit_length() - 1)
