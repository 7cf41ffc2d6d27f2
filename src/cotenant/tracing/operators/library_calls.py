"""Library calls for which PyTorch allocates a workspace from the caching allocator.

cuBLAS has one workspace per handle, that is per thread, for good; cuDNN has one for the duration of a convolution,
allocated after its result. The size depends on the GPU, so the trace holds the call and not the bytes.
Source: aten/src/ATen/native/cudnn/Conv_v8.cpp, ATen/cuda/CublasHandlePool.cpp.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.convolution_backend import is_depthwise, runs_on_cudnn
from cotenant.tracing.operators import kernel_scratch, reductions
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import is_channels_last

operators = OperatorTable()


@operators.recorder_of("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::addmv", "aten::baddbmm", "aten::addbmm")
def _gemm(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    kernel_scratch.blas_copies(ctx, *args[-2:])
    ctx.record(out)
    ctx.record_call("gemm", out.fake_device, dtype=_dtype(out))


@operators.recorder_of("aten::addmm")
def _gemm_bias(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    # cuBLASLt fuses a bias vector; any other bias is copied into the result, and cuBLAS adds the product.
    # Source: ATen/native/cuda/Blas.cpp, `isInputCompliesAddmmCudaLt`.
    kernel_scratch.blas_copies(ctx, *args[1:3])
    ctx.record(out)
    bias = args[0]
    fused = bias.dim() == 1 and bias.dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    fused = fused and out.dim() == 2 and bias.shape[0] == out.shape[1] and out.shape[0] > 1 and out.shape[1] > 1
    ctx.record_call("gemm_lt" if fused else "gemm", out.fake_device, dtype=_dtype(out))


@operators.recorder_of("aten::convolution")
def _conv(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    x, w, _bias, stride, padding, dilation, transposed, _output_padding, groups = args[:9]
    ctx.record(out)
    if x.numel():
        params = _conv_params(x, w, out, stride, padding, dilation, transposed, groups)
        ctx.record_call("conv_forward", x.fake_device, **params)


@operators.recorder_of("aten::convolution_backward")
def _conv_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    grad, x, w, _bias_sizes, stride, padding, dilation, transposed, _output_padding, groups, mask = args[:11]
    grad_x, grad_w, grad_b = out
    shape = (stride, padding, dilation, transposed, groups)
    calls = [("conv_dgrad", grad_x, mask[0]), ("conv_wgrad", grad_w, mask[1])]
    params = _conv_params(x, w, grad, *shape)
    if is_depthwise(params) and not runs_on_cudnn(params, torch.cuda.get_device_capability()):
        calls.reverse()  # ATen/native/cuda/DepthwiseConv2d.cu, `conv_depthwise2d_backward_cuda_out`
    for kind, result, wanted in calls:
        if wanted:
            ctx.record(result)
            ctx.record_call(kind, x.fake_device, **params)
    if mask[2]:
        ctx.record(grad_b)
        # cuDNN computes no gradient of the bias: Convolution.cpp, `convolution_backward`, sums the gradient over all
        # pixels after the other two.
        pixels = tuple(dim for dim in range(grad.dim()) if dim != 1)
        reductions.split_reduction(ctx, grad, pixels, reductions.accumulator_bytes(grad.dtype))


def _conv_params(
    x: Any, w: Any, y: Any, stride: Any, padding: Any, dilation: Any, transposed: Any, groups: Any
) -> dict[str, Any]:
    cudnn = torch.backends.cudnn
    # One number stands for all dimensions (ATen/native/Convolution.cpp, `convolution_expand_param_if_needed`).
    stride, padding, dilation = (
        tuple(values) * (x.dim() - 2 if len(values) == 1 else 1) for values in (stride, padding, dilation)
    )
    return {
        "x": tuple(x.shape),
        "w": tuple(w.shape),
        "y": tuple(y.shape),
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "transposed": bool(transposed),
        "groups": int(groups),
        "dtype": _dtype(x),
        "channels_last": is_channels_last(x) or is_channels_last(w),
        "enabled": bool(cudnn.enabled),
        "benchmark": bool(cudnn.benchmark),
        "deterministic": bool(cudnn.deterministic),
        "allow_tf32": bool(cudnn.allow_tf32),
    }


@operators.recorder_of("aten::resize_")
def _resize(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.recorder.record_resize(args[0].untyped_storage())
    ctx.record(out)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
