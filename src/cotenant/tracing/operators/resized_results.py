"""Results that PyTorch allocates at the size of an operand and then resizes: their storage keeps the larger size.

A loss that is reduced to one number holds as much as its input, and the sum of overlapping patches as much as these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.fast_paths import view_of
from cotenant.tracing.operators.kernel_scratch import contiguous_copies
from cotenant.tracing.operators.reductions import accumulator_bytes, split_reduction
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides

operators = OperatorTable()

_NO_REDUCTION = 0
_MAX_VECTORS_WITHOUT_PRODUCT = 25


@operators.shape_of("aten::mse_loss", "aten::smooth_l1_loss")
def _pairwise_loss(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The result at full size, then the unreduced loss, and the buffer of its reduction.

    Source: ATen/native/BinaryOps.cpp, TORCH_META_FUNC(mse_loss); Loss.cpp, TORCH_IMPL_FUNC(mse_loss_out).
    """
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    first, second = given["self"], given["target"]
    if given.get("reduction", 1) == _NO_REDUCTION or not all(isinstance(of, FakeTensor) for of in (first, second)):
        return NotImplemented
    if first.fake_device != second.fake_device:
        return NotImplemented
    out = _numbers(ctx, torch.broadcast_shapes(first.shape, second.shape), torch.result_type(first, second), first)
    ctx.record(out)
    unreduced = ctx.empty_like(out)
    ctx.record(unreduced)
    ctx.keep_until_done([unreduced])
    split_reduction(ctx, unreduced, tuple(range(unreduced.dim())), accumulator_bytes(out.dtype))
    return view_of(ctx, out, (), (), 0)


@operators.shape_of("aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward")
def _pairwise_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Zeros like the input, contiguous. Source: ATen/native/Loss.cpp, `mse_loss_backward`."""
    of = args[1]
    return _numbers(ctx, of.shape, of.dtype, of) if isinstance(of, FakeTensor) else NotImplemented


@operators.recorder_of("aten::huber_loss")
def _huber_loss(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The unreduced loss beside the result. Source: ATen/native/Loss.cpp, `huber_loss`."""
    first, second = args[:2]
    if (args[2] if len(args) > 2 else kwargs.get("reduction", 1)) != _NO_REDUCTION:
        shape = torch.broadcast_shapes(first.shape, second.shape)
        unreduced = _numbers(ctx, shape, out.dtype, out)
        ctx.record(unreduced)
        ctx.keep_until_done([unreduced])
        ctx.record(out)
        split_reduction(ctx, unreduced, tuple(range(len(shape))), accumulator_bytes(out.dtype))
    ctx.record(out)


@operators.shape_of("aten::binary_cross_entropy", "aten::soft_margin_loss")
def _resized_loss(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The unreduced loss, whose storage takes the reduced one, which is made beside it.

    Source: ATen/native/cuda/Loss.cu, `binary_cross_entropy_out_cuda`; Loss.cpp, `soft_margin_loss_out`.
    """
    names = [argument.name for argument in func._schema.arguments]
    reduction = (dict(zip(names, args, strict=False)) | kwargs).get("reduction", 1)
    unreduced = ctx.empty_like(args[0])
    if reduction == _NO_REDUCTION:
        return unreduced
    ctx.record(unreduced)
    ctx.keep_until_done([ctx.scratch(unreduced.element_size(), unreduced.fake_device)])
    split_reduction(ctx, unreduced, tuple(range(unreduced.dim())), accumulator_bytes(unreduced.dtype))
    return view_of(ctx, unreduced, (), (), 0)


@operators.shape_of("aten::soft_margin_loss_backward")
def _soft_margin_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """An exponential beside the gradient, its operands before. Source: Loss.cpp, `soft_margin_loss_backward_out`."""
    nbytes = args[1].numel() * args[1].element_size()
    *operands, exponential = [ctx.scratch(nbytes, args[1].fake_device) for _ in ("negative", "product", "exponential")]
    operands.clear()
    ctx.keep_until_done([exponential])
    return ctx.empty_like(args[1])


@operators.shape_of("aten::im2col", "aten::col2im")
def _patches(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The result at the input's size, the input contiguous, and the result anew where it is larger.

    Source: ATen/native/cuda/Im2Col.cu, `im2col_cuda`; Col2Im.cu, `col2im_cuda`: `at::empty_like`, `resize_`.
    """
    source = args[0]
    if not isinstance(source, FakeTensor):
        return NotImplemented
    out = ctx.run_fake(func, args, kwargs, source.fake_device)
    first = _numbers(ctx, (source.numel(),), source.dtype, source)
    ctx.record(first)
    contiguous_copies(ctx, source)
    if out.numel() <= source.numel():
        return view_of(ctx, first, out.shape, contiguous_strides(out.shape), 0)
    ctx.record(out)
    return out


@operators.shape_of("aten::_cdist_forward")
def _distances(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Euclidean distances of more than 25 vectors are a matrix product.

    Source: ATen/native/Distance.cpp, `cdist_impl`.
    """
    first, second, p, mode = (*args, None)[:4]
    many = max(first.shape[-2], second.shape[-2]) > _MAX_VECTORS_WITHOUT_PRODUCT
    if p != 2 or not (mode == 1 or (not mode and many)):
        return NotImplemented
    with ctx:
        return torch.ops.aten._euclidean_dist(first, second)


@operators.recorder_of("aten::_cdist_backward", "aten::_pdist_backward")
def _distances_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """A gradient of each vector from each other one, before they are added; none where differences are counted.

    Source: ATen/native/cuda/DistanceKernel.cu, `cdist_backward_kernel_impl`, `pdist_backward_kernel_impl`.
    """
    ctx.record(out)
    is_of_two = func._opname == "_cdist_backward"
    if args[3 if is_of_two else 2] == 0:
        return
    others = args[2].shape[-2] if is_of_two else out.shape[-2] - 1
    ctx.keep_until_done([ctx.scratch(math.prod(out.shape) * others * out.element_size(), out.device)])


def _numbers(ctx: OpContext, shape: Sequence[int], dtype: torch.dtype, like: FakeTensor) -> FakeTensor:
    return ctx.empty_strided(shape, contiguous_strides(shape), dtype, like.fake_device)
