"""Sums, means, norms and extremes over many elements, whose buffers depend on the GPU.

Where few results are made of many elements, CUDA's kernel splits a result over several blocks and allocates a buffer
for their partial results. The number of blocks depends on the GPU, so the trace holds the call and not the bytes:
`estimators.reductions` computes them. Source: aten/src/ATen/native/cuda/Reduce.cuh, `gpu_reduce_kernel`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_MIN_SPLIT_ELEMENTS = 256
"""Elements per result from which the kernel may split it."""

_SUMS = (
    "aten::sum",
    "aten::sum.dim_IntList",
    "aten::nansum",
    "aten::mean",
    "aten::mean.dim",
    "aten::prod",
    "aten::prod.dim_int",
    "aten::linalg_vector_norm",
    "aten::norm.Scalar",
    "aten::norm.ScalarOpt_dim",
    "aten::norm.ScalarOpt_dim_dtype",
    "aten::norm.ScalarOpt_dtype",
)
_EXTREMES = ("aten::amax", "aten::amin", "aten::max", "aten::min")
_EXTREMES_WITH_INDEX = ("aten::argmax", "aten::argmin", "aten::max.dim", "aten::min.dim")
_MOMENTS = ("aten::std.correction", "aten::var.correction", "aten::std_mean.correction", "aten::var_mean.correction")
_INDEX_BYTES = 8
_COUNT_BYTES = 4
_VECTOR_WIDTH = 4


def split_reduction(ctx: OpContext, x: Any, dims: tuple[int, ...], sum_bytes: int) -> None:
    """Record a reduction of `x` over `dims`, if it may need a buffer; `sum_bytes`: of a thread's partial result."""
    # Reduce.cuh, `setReduceConfig`: a result is split over blocks if a thread would add `max_values_per_thread`, 256.
    if math.prod(x.shape[dim] for dim in dims) < _MIN_SPLIT_ELEMENTS or not x.numel():
        return
    ctx.record_call(
        "reduction",
        x.fake_device,
        shape=tuple(x.shape),
        strides=tuple(x.stride()),
        offset=x.storage_offset() % _VECTOR_WIDTH,
        dims=dims,
        item_bytes=x.element_size(),
        sum_bytes=sum_bytes,
    )


def accumulator_bytes(dtype: torch.dtype) -> int:
    """Bytes of a sum: float32 for half precision, int64 for integers, else those of the dtype."""
    if not dtype.is_floating_point and not dtype.is_complex:
        return 8
    return max(4, dtype.itemsize)


@operators.recorder_of("aten::aminmax")
def _extremes(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Both at once. Source: ATen/native/cuda/ReduceMinValuesKernel.cu, `aminmax_allreduce_kernel_impl`."""
    ctx.record(out)
    if kwargs.get("dim") is None:
        split_reduction(ctx, args[0], tuple(range(args[0].dim())), 2 * args[0].element_size())


@operators.recorder_of(*_SUMS, *_EXTREMES, *_EXTREMES_WITH_INDEX, *_MOMENTS)
def _reduction(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    x = args[0]
    if x.layout is not torch.strided:
        return
    position = _dim_position(func)
    if _converts_first(func, x, out):
        x = ctx.empty_like(x, out.dtype)
        ctx.record(x)
        ctx.keep_until_done([x])
    dims = args[position] if position < len(args) else kwargs.get("dim")
    split_reduction(ctx, x, _normalized_dims(dims, x.dim()), _accumulator_bytes_of(func.name(), x))


def _converts_first(func: Any, x: Any, out: Any) -> bool:
    """Whether the kernel copies the input to the result's dtype first.

    It reads half precision directly where the result is float32, and complex numbers for their norm, which is real.

    Source: aten/src/ATen/native/ReduceOpsUtils.h, `make_reduction_from_out_ty`.
    """
    if func._opname not in ("sum", "nansum", "mean", "prod", "linalg_vector_norm", "norm") or x.dtype == out.dtype:
        return False
    if x.dtype.is_complex:
        return False
    return not (x.dtype in (torch.float16, torch.bfloat16) and out.dtype is torch.float32)


def _accumulator_bytes_of(name: str, x: Any) -> int:
    """Of a thread's partial result: a sum, an extreme, one with its index, or Welford's mean, deviation and counts."""
    if name in _EXTREMES_WITH_INDEX:
        return 2 * _INDEX_BYTES
    if name in _MOMENTS:
        number = max(4, x.element_size())
        return 2 * number + max(number, _COUNT_BYTES) + number
    if x.dtype.is_complex and "norm" in name:
        return x.element_size() // 2
    return x.element_size() if name in _EXTREMES else accumulator_bytes(x.dtype)


def _normalized_dims(dims: Any, rank: int) -> tuple[int, ...]:
    """Sorted and nonnegative; all of them if none is given."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(rank))
    named = dims if isinstance(dims, (list, tuple)) else [dims]
    return tuple(sorted(dim % rank for dim in named)) if rank else ()


@functools.cache
def _dim_position(func: OpOverload) -> int:
    """Where `dim` stands among the arguments; their number, where the operator has none."""
    names = [argument.name for argument in func._schema.arguments]
    return names.index("dim") if "dim" in names else len(names)
