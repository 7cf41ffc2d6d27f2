"""Sorts: indices, copies and the storage of CUB's sorts beside the sorted values and their places.

Source: aten/src/ATen/native/cuda/Sort.cpp, `sort_cuda_kernel`; Sort.cu, `launch_stable_sort_kernel`.
"""

from __future__ import annotations

from typing import Any

from torch._ops import OpOverload

from cotenant.tracing.operators import cub_buffers
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_INDEX_BYTES = 8
_MAX_SMALL_SORT = 4096
"""Rows of up to so many elements are sorted in place by one thread block each."""
_MAX_FULL_SORTS = 128
"""Up to so many rows are sorted as one, and then by their rows."""
_MIN_SINGLE_SORT = 1_000_000
"""Rows of so many elements are sorted one after the other."""


@operators.recorder_of("aten::sort", "aten::sort.stable")
def _sort(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Values and places, and what the way of sorting needs."""
    x = args[0]
    ctx.record(out)
    if x.device.type != "cuda" or not x.numel() or not x.dim():
        return
    names = [argument.name for argument in func._schema.arguments]
    dim = (dict(zip(names, args, strict=False)) | kwargs).get("dim", -1) % x.dim()
    length, item = x.shape[dim], x.element_size()
    rows = x.numel() // length

    def scratch(nbytes: int) -> Any:
        return ctx.scratch(nbytes, x.device)

    if length <= _MAX_SMALL_SORT:
        ctx.keep_until_done([scratch(length * _INDEX_BYTES)])
        return
    if x.stride(dim) != 1 or not x.is_contiguous():  # values and places are sorted beside the results, and copied
        ctx.keep_until_done([scratch(x.numel() * item), scratch(x.numel() * item), scratch(x.numel() * _INDEX_BYTES)])
    if rows == 1 or length >= _MIN_SINGLE_SORT:
        ctx.keep_until_done([scratch(length * _INDEX_BYTES)])
        size = cub_buffers.radix_sort_bytes(length, item, key_bits=8 * item, value_bytes=_INDEX_BYTES)
        ctx.keep_until_done([scratch(size)])
    elif rows < _MAX_FULL_SORTS:
        count = x.numel()
        pairs = [scratch(count * _INDEX_BYTES), scratch(count * _INDEX_BYTES), scratch(count * item)]
        by_key = cub_buffers.radix_sort_bytes(count, item, key_bits=8 * item, value_bytes=_INDEX_BYTES)
        by_row = cub_buffers.radix_sort_bytes(count, _INDEX_BYTES, key_bits=(rows - 1).bit_length())
        ctx.keep_until_done(pairs)
        for size in (by_key, by_row):
            buffer = scratch(size)
            del buffer
    else:
        ctx.keep_until_done([scratch(x.numel() * _INDEX_BYTES)])
        ctx.keep_until_done([scratch(cub_buffers.segmented_sort_bytes(x.numel(), item, _INDEX_BYTES))])
