"""Library calls for which PyTorch allocates a workspace from the caching allocator.

cuBLAS has one workspace per handle, that is per thread, for good; cuDNN has one for the duration of a convolution,
allocated after its result. The size depends on the GPU, so the trace holds the call and not the bytes.
Source: aten/src/ATen/native/cudnn/Conv_v8.cpp, ATen/cuda/CublasHandlePool.cpp.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.convolution_backend import is_depthwise, is_image_by_image, needs_columns, runs_on_cudnn
from cotenant.tracing.operators import kernel_scratch, reductions
from cotenant.tracing.operators.convolutions import convolution_format, copies_in_format, copy_in_format
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import suggested_format

operators = OperatorTable()

try:
    _HAS_OUTER_PRODUCT = importlib.util.find_spec("torch._native.ops.bmm_outer_product") is not None
except ModuleNotFoundError:  # `find_spec` imports the packages around it, which older versions do not have
    _HAS_OUTER_PRODUCT = False


_PRODUCTS = ("aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::addmv", "aten::baddbmm", "aten::addbmm")


@operators.recorder_of(*_PRODUCTS, *(f"{name}.out" for name in _PRODUCTS))
def _gemm(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    if func._opname == "bmm" and _is_outer_product_of_triton(*args[:2]):
        ctx.record(out)
        return
    kernel_scratch.blas_copies(ctx, *args[-2:])
    ctx.record(out)
    ctx.record_call("gemm", out.fake_device, dtype=_dtype(out))


def _is_outer_product_of_triton(a: Any, b: Any) -> bool:
    """Whether PyTorch 2.13 multiplies without cuBLAS. Source: torch/_native/ops/bmm_outer_product/triton_impl.py.

    Wheels with CUDA bring Triton, so the traced build need not have it.
    """
    return _HAS_OUTER_PRODUCT and a.shape[2] == 1 and b.shape[1] == 1 and a.numel() > 0 and not a.is_complex()


@operators.recorder_of("aten::addmm", "aten::addmm.out")
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
    """The input is copied before the result is allocated, the weight after it, if they have another memory format.

    Source: Convolution.cpp, `_convolution`; ATen/native/cudnn/ConvShared.cpp, `cudnn_convolution_forward_out`.
    """
    x, w, _bias, stride, padding, dilation, transposed, _output_padding, groups = args[:9]
    layout = convolution_format(x, w)
    ctx.keep_until_done(copies_in_format(ctx, layout, x))
    ctx.record(out)
    ctx.keep_until_done(copies_in_format(ctx, layout, w))
    if x.numel():
        params = _conv_params(x, w, out, stride, padding, dilation, transposed, groups)
        ctx.record_call("conv_forward", x.fake_device, **params)
        if is_image_by_image(params, torch.cuda.get_device_capability()):
            columns = _columns(ctx, params, x) if needs_columns(params) else None
            ctx.record_call("gemm", x.fake_device, dtype=_dtype(x))
            del columns


@operators.recorder_of("aten::convolution_backward")
def _conv_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Copies in the memory format: of the input for both gradients, of weight and gradient for one at a time.

    Source: Convolution.cpp, `convolution_backward`; ConvShared.cpp, `cudnn_convolution_backward` and the functions
    that it calls.
    """
    grad, x, w, _bias_sizes, stride, padding, dilation, transposed, _output_padding, groups, mask = args[:11]
    grad_x, grad_w, grad_b = out
    layout = convolution_format(x, w)
    if mask[1]:
        ctx.keep_until_done(copies_in_format(ctx, layout, x))
    shape = (stride, padding, dilation, transposed, groups)
    calls = [("conv_dgrad", grad_x, mask[0]), ("conv_wgrad", grad_w, mask[1])]
    params = _conv_params(x, w, grad, *shape)
    capability = torch.cuda.get_device_capability()
    operands = [w, grad]
    if transposed:
        ctx.keep_until_done(copies_in_format(ctx, layout, operands.pop()))
    elif runs_on_cudnn(params, capability):
        wanted_format = suggested_format(x) if x.is_contiguous(memory_format=layout) else layout
        if suggested_format(grad) is not wanted_format:
            ctx.keep_until_done([copy_in_format(ctx, wanted_format, operands.pop())])
    elif suggested_format(grad) is not layout:
        ctx.keep_until_done(copies_in_format(ctx, layout, operands.pop()))
    by_image = is_image_by_image(params, capability)
    if is_depthwise(params) and not runs_on_cudnn(params, capability):
        calls.reverse()  # ATen/native/cuda/DepthwiseConv2d.cu, `conv_depthwise2d_backward_cuda_out`
    bias_first = by_image and mask[2]  # ConvolutionMM2d.cu, `slow_conv2d_backward_out_cuda`
    for kind, result, wanted in calls:
        if kind == "conv_wgrad" and bias_first:
            _bias_gradient(ctx, grad, grad_b)
        if wanted and kind == "conv_dgrad":
            ctx.record(result)
            copies = copies_in_format(ctx, layout, *operands)
            ctx.record_call(kind, x.fake_device, **params)
            columns = _columns(ctx, params, x) if by_image else None
            del copies, columns
        elif wanted:
            copies = copies_in_format(ctx, layout, *operands[1:])
            ctx.record(result)
            ctx.record_call(kind, x.fake_device, **params)
            columns = _columns(ctx, params, x) if by_image and needs_columns(params) else None
            del copies, columns
    if mask[2] and not bias_first:
        _bias_gradient(ctx, grad, grad_b)


def _bias_gradient(ctx: OpContext, grad: Any, out: Any) -> None:
    """A sum of the gradient over all pixels, which cuDNN leaves to PyTorch. Source: Convolution.cpp."""
    ctx.record(out)
    pixels = tuple(dim for dim in range(grad.dim()) if dim != 1)
    reductions.split_reduction(ctx, grad, pixels, reductions.accumulator_bytes(grad.dtype))


def _columns(ctx: OpContext, params: dict[str, Any], x: Any) -> Any:
    """The pixels under the kernel at each place of one image. Source: ATen/native/cuda/ConvolutionMM2d.cu."""
    numel = math.prod(params["w"][1:]) * math.prod(params["y"][2:])
    return ctx.scratch(numel * x.element_size(), x.fake_device)


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
        "channels_last": convolution_format(x, w) is not torch.contiguous_format,
        "enabled": bool(cudnn.enabled),
        "benchmark": bool(cudnn.benchmark),
        # aten/src/ATen/native/Convolution.cpp, `convolution` and `convolution_backward`.
        "deterministic": bool(cudnn.deterministic) or torch.are_deterministic_algorithms_enabled(),
        "allow_tf32": bool(cudnn.allow_tf32),
    }


@operators.recorder_of("aten::resize_")
def _resize(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.recorder.record_resize(args[0].untyped_storage())
    ctx.record(out)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
