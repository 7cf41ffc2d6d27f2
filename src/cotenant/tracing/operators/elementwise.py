"""Elementwise operators: one result of the shape of an operand, or none where they work in place.

They are most of the calls of a training step, and PyTorch's meta kernels for them run Python code that computes
broadcasting and type promotion. Each function here answers the ordinary call and leaves the rest, errors included, to
the meta kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import increment_version

from cotenant.tracing.operators.host_copies import broadcasts_to, is_cuda
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides

operators = OperatorTable()

_WITH_NUMBERS = frozenset(("add", "sub", "mul", "div"))
"""Operators of two tensors, one of which may be a number."""
_NUMBER_BYTES = 8
"""Of a number as a tensor: float64 or int64."""


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
    """Of tensors of one shape, dtype and layout, and numbers that do not change the dtype."""
    first = args[0]
    if not isinstance(first, FakeTensor) or first.layout is not torch.strided or not first.dtype.is_floating_point:
        return NotImplemented
    if any(value is not None for key, value in kwargs.items() if key not in ("alpha", "approximate")):
        return NotImplemented
    for operand in args[1:]:
        if isinstance(operand, torch.Tensor):
            if not isinstance(operand, FakeTensor) or operand.fake_device != first.fake_device:
                return NotImplemented
            if operand.dtype != first.dtype or operand.shape != first.shape:
                return NotImplemented
            if operand.stride() != first.stride() and not (operand.is_contiguous() and first.is_contiguous()):
                return NotImplemented
        elif isinstance(operand, complex):
            return NotImplemented
    if func._opname in _WITH_NUMBERS and not isinstance(args[1], torch.Tensor):
        return ctx.empty_like(first)
    return _result_like(ctx, first)


def _result_like(ctx: OpContext, first: Any) -> Any:
    """A result of TensorIterator for operands of one layout.

    Images of one pixel are contiguous in two formats, and the result is row-major. A number in place of a tensor is an
    operand of another shape, with which the result has the strides of the tensor.

    Source: ATen/TensorIterator.cpp, `compute_fast_setup_type`.
    """
    if first.is_contiguous():
        return ctx.empty_strided(first.shape, contiguous_strides(first.shape), first.dtype, first.fake_device)
    return ctx.empty_like(first)


@operators.shape_of("aten::silu_backward", "aten::mish_backward")
def _like_operands(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return _result_like(ctx, args[0]) if is_cuda(args[0]) else NotImplemented


@operators.shape_of(
    "aten::_sample_dirichlet",
    "aten::_dirichlet_grad",
    "aten::_standard_gamma",
    "aten::_standard_gamma_grad",
    "aten::binomial",
    "aten::poisson",
    "aten::_logcumsumexp",
)
def _like_first(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return ctx.empty_like(args[0]) if is_cuda(args[0]) else NotImplemented


@operators.shape_of(
    "aten::elu_backward", "aten::hardsigmoid_backward", "aten::hardswish_backward", "aten::hardtanh_backward"
)
def _like_gradient(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """In the order of the gradient's dimensions, as TensorIterator gives; PyTorch's decompositions take the input's."""
    return _result_like(ctx, args[0]) if is_cuda(args[0]) and 0 not in args[0].stride() else NotImplemented


@operators.shape_of(
    "aten::uniform_",
    "aten::normal_",
    "aten::exponential_",
    "aten::bernoulli_.float",
    "aten::random_",
    "aten::zero_",
    "aten::fill_.Scalar",
    "aten::add_.Tensor",
    "aten::mul_.Tensor",
    "aten::div_.Tensor",
    "aten::addcmul_",
    "aten::addcdiv_",
    "aten::lerp_.Scalar",
    "aten::lerp_.Tensor",
    "aten::relu_",
)
def _in_place(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The first tensor, if the others broadcast to it; otherwise the meta kernel raises PyTorch's own error."""
    target = args[0]
    fit = all(broadcasts_to(operand, target) for operand in args[1:] if isinstance(operand, torch.Tensor))
    return target if fit else NotImplemented


@operators.recorder_of("aten::pow.Scalar")
def _power_of_a_number(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The number as a tensor, unless it is 1. Source: ATen/native/Pow.cpp, TORCH_IMPL_FUNC(pow_Scalar_out)."""
    ctx.record(out)
    if is_cuda(out) and args[0] != 1:
        ctx.keep_until_done([ctx.scratch(_NUMBER_BYTES, out.device)])


@operators.shape_of("aten::lerp.Tensor")
def _lerp(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """With a weight of one number on the CPU, which CUDA's kernel takes and the meta kernel refuses.

    Source: aten/src/ATen/native/cuda/Lerp.cu, `lerp_tensor_kernel`.
    """
    start, end, weight = args[:3]
    if not is_cuda(start) or is_cuda(weight) or weight.dim() or start.shape != end.shape:
        return NotImplemented
    return ctx.empty_like(start)


@operators.shape_of("aten::_amp_update_scale_")
def _update_scale(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The scale of `GradScaler`: one element, like the other tensors of the call."""
    return args[0]


@operators.shape_of("aten::record_stream", "aten::_amp_foreach_non_finite_check_and_unscale_")
def _returns_none(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> None:
    return None


@operators.shape_of("aten::_foreach_*", "aten::_fused_*")
def _foreach(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Nothing in place; else a new tensor for each of the first list, a scalar where the operator reduces.

    CUDA's kernels count writes, so that backward raises if they changed its graph; those of fused optimizers do not.
    Source: aten/src/ATen/native/cuda/Foreach*.cu, `increment_version`.
    """
    first = next((arg for arg in args if isinstance(arg, (list, tuple))), ())
    name = func._opname
    if name.endswith("_"):
        if name.startswith("_foreach_"):
            for tensor in first:  # torch 2.4 takes one
                increment_version(tensor)
        return None
    if name in {"_foreach_norm", "_foreach_max", "_foreach_sum"}:
        return [ctx.empty_strided((), (), tensor.dtype, tensor.fake_device) for tensor in first]
    if all(is_cuda(tensor) for tensor in first) and name.startswith("_foreach_"):
        return [ctx.empty_like(tensor) for tensor in first]
    return NotImplemented
