"""Sums, means, norms and extremes over many elements: calls whose buffers depend on the GPU.

Where few results are made of many elements, CUDA's kernel divides a result among blocks and takes a buffer for what
each found. How many blocks is a question of the GPU, so the trace keeps the call, not the bytes:
`estimators.reductions` says what it takes. Source: aten/src/ATen/native/cuda/Reduce.cuh, `gpu_reduce_kernel`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from cotenant.tracing.operators.kernel_scratch import find_operator

_MIN_SPLIT_ELEMENTS = 256
"""Elements of a result with which it can be divided."""

_EXTREMES = ("amax", "amin", "max", "min")
_EXTREMES_WITH_INDEX = ("argmax", "argmin", "max.dim", "min.dim")
_MOMENTS = ("std.correction", "var.correction", "std_mean.correction", "var_mean.correction")
_INDEX_BYTES = 8
_COUNT_BYTES = 4
_VECTOR_WIDTH = 4


def split_reduction(mode: Any, x: Any, dims: tuple[int, ...], sum_bytes: int) -> None:
    """Record that `x` is reduced over `dims`, where that can take a buffer; a thread keeps `sum_bytes`."""
    if math.prod(x.shape[each] for each in dims) < _MIN_SPLIT_ELEMENTS or not x.numel():
        return
    mode.call(
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
    """Bytes of a sum of such numbers: halves are added up in float32, integers in int64."""
    if not dtype.is_floating_point and not dtype.is_complex:
        return 8
    return max(4, dtype.itemsize)


def _reduction(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    mode.note(out)
    x = args[0]
    if x.layout is not torch.strided:
        return
    name, at = _name_and_dim_position(func)
    if _converts_first(func, x, out):
        x = mode.empty_like(x, out.dtype)
        mode.note(x)
        mode.keep_until_done([x])
    dims = args[at] if at < len(args) else kwargs.get("dim")
    split_reduction(mode, x, _normalized_dims(dims, x.dim()), _accumulator_bytes_of(name, x))


def _converts_first(func: Any, x: Any, out: Any) -> bool:
    """Whether the elements are converted first: not those of half precision that give float32, nor complex ones.

    Source: aten/src/ATen/native/ReduceOpsUtils.h, `make_reduction_from_out_ty`.
    """
    if func._opname not in ("sum", "nansum", "mean", "prod", "linalg_vector_norm", "norm") or x.dtype == out.dtype:
        return False
    if x.dtype.is_complex:  # whose norm is real
        return False
    return not (x.dtype in (torch.float16, torch.bfloat16) and out.dtype is torch.float32)


def _accumulator_bytes_of(name: str, x: Any) -> int:
    """What a thread keeps: a sum, an extreme, one with its place, or a mean with deviations and counts."""
    if name in _EXTREMES_WITH_INDEX:
        return 2 * _INDEX_BYTES
    if name in _MOMENTS:
        number = max(4, x.element_size())
        return 2 * number + max(number, _COUNT_BYTES) + number
    if x.dtype.is_complex and "norm" in name:  # real numbers, as its result
        return x.element_size() // 2
    return x.element_size() if name.partition(".")[0] in _EXTREMES else accumulator_bytes(x.dtype)


def _normalized_dims(dims: Any, rank: int) -> tuple[int, ...]:
    """All of them if none is named; a number stands for one."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(rank))
    named = dims if isinstance(dims, (list, tuple)) else [dims]
    return tuple(sorted(each % rank for each in named)) if rank else ()


@functools.cache
def _name_and_dim_position(func: Any) -> tuple[str, int]:
    """(Name without `.default`, place of `dim` among the arguments)."""
    names = [each.name for each in func._schema.arguments]
    name = func._opname if func._overloadname == "default" else f"{func._opname}.{func._overloadname}"
    return name, names.index("dim") if "dim" in names else len(names)


_SUMS = (
    *("sum", "sum.dim_IntList", "nansum", "mean", "mean.dim", "prod", "prod.dim_int", "linalg_vector_norm"),
    *("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype"),
)
RECORDERS: dict[Any, Any] = {
    func: _reduction
    for func in map(find_operator, (*_SUMS, *_EXTREMES, *_EXTREMES_WITH_INDEX, *_MOMENTS))
    if func is not None
}
"""What records a call, by operator."""
