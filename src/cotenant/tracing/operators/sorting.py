"""Sorts and what is drawn by sorting: indices, copies and the storage of CUB's sorts beside the results.

Source: aten/src/ATen/native/cuda/Sort.cpp, `sort_cuda_kernel`; Sort.cu, `launch_stable_sort_kernel`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators import cub_buffers
from cotenant.tracing.operators.kernel_scratch import contiguous_copies
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides

operators = OperatorTable()

_INDEX_BYTES, _INT_BYTES = 8, 4
_SHORT_KEY_BITS = 32
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
    _sort_scratch(ctx, x, (dict(zip(names, args, strict=False)) | kwargs).get("dim", -1) % x.dim())


def _sort_scratch(ctx: OpContext, x: torch.Tensor, dim: int) -> None:
    """What is allocated beside values and places, until the operator is over."""
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
        size = cub_buffers.radix_sort_bytes(
            length, item, key_bits=8 * item, value_bytes=_INDEX_BYTES, capability=torch.cuda.get_device_capability()
        )
        ctx.keep_until_done([scratch(size)])
    elif rows < _MAX_FULL_SORTS:
        count = x.numel()
        pairs = [scratch(count * _INDEX_BYTES), scratch(count * _INDEX_BYTES), scratch(count * item)]
        by_key = cub_buffers.radix_sort_bytes(
            count, item, key_bits=8 * item, value_bytes=_INDEX_BYTES, capability=torch.cuda.get_device_capability()
        )
        by_row = cub_buffers.radix_sort_bytes(
            count, _INDEX_BYTES, key_bits=(rows - 1).bit_length(), capability=torch.cuda.get_device_capability()
        )
        ctx.keep_until_done(pairs)
        for size in (by_key, by_row):
            buffer = scratch(size)
            del buffer
    else:
        ctx.keep_until_done([scratch(x.numel() * _INDEX_BYTES)])
        ctx.keep_until_done([scratch(cub_buffers.segmented_sort_bytes(x.numel(), item, _INDEX_BYTES))])


_SEVERAL_BLOCKS = ((20, 20_000), (40, 10_000), (80, 8_000), (199, 5_000), (799, 3_000), (4_000, 800))
_SEVERAL_BLOCKS_ELSE = 400
"""Up to so many rows are searched by several thread blocks each from this length; more rows from the second."""
_THREADS, _SMS, _BLOCKS_OF_SM = 256, 108, 6
"""Threads of a block; blocks of a GPU at a time: an A100's is taken for all."""
_DIGITS = 256
_PREFIX_BYTES = 1279
"""Of CUB's scan by key, for up to 80,000 thread blocks."""


@operators.recorder_of("aten::topk")
def _topk(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Long rows are divided over thread blocks, each of which counts the digits of its part.

    Many of the largest are sorted beside the results, and copied there. Source: ATen/native/cuda/TensorTopK.cu,
    `should_use_multiblock`, `get_items_per_thread`, mbtopk's `launch`; TensorTopK.cpp, TORCH_IMPL_FUNC(topk_out_cuda).
    """
    x = args[0]
    ctx.record(out)
    if x.device.type != "cuda" or not x.numel() or not x.dim():
        return
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    dim = given.get("dim", -1) % x.dim()
    _digits(ctx, x, dim)
    values = out[0]
    if given.get("sorted", True) and values.shape[dim] > _MAX_SMALL_SORT:
        places_bytes = values.numel() * _INDEX_BYTES
        ctx.keep_until_done(
            [ctx.scratch(nbytes, x.device) for nbytes in (places_bytes, values.numel() * values.element_size())]
        )
        _sort_scratch(ctx, values, dim)
        ctx.keep_until_done([ctx.scratch(places_bytes, x.device)])


def _digits(ctx: OpContext, x: torch.Tensor, dim: int) -> None:
    """Buffers of the search by several thread blocks, if it is one."""
    length = x.shape[dim]
    rows = x.numel() // length
    if length < next((least for most, least in _SEVERAL_BLOCKS if rows <= most), _SEVERAL_BLOCKS_ELSE):
        return
    items = min(64, max(4, -(-x.numel() // (_SMS * _BLOCKS_OF_SM * _THREADS))))
    blocks = rows * -(-length // (items * _THREADS))
    sizes = [
        *(rows * nbytes for nbytes in (x.element_size(), 8, 2 * max(4, x.element_size()))),
        blocks * _DIGITS * 2,
        rows * _DIGITS * 4,
        blocks * 4,
        blocks * 4,
    ]
    buffers = [ctx.scratch(nbytes, x.device) for nbytes in sizes]
    for _ in ("larger ones", "equal ones"):
        prefix = ctx.scratch(_PREFIX_BYTES, x.device)
        del prefix
    del buffers


@operators.shape_of("aten::median", "aten::nanmedian")
def _median(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Of all elements, which are sorted. Source: ATen/native/cuda/Sorting.cpp, `median_impl`."""
    x = args[0]
    if not isinstance(x, FakeTensor) or x.device.type != "cuda" or not x.numel():
        return NotImplemented
    with ctx:
        ordered = x.flatten().sort()[0]
        if func._opname == "median":
            return torch.where(ordered[-1].isnan(), ordered[-1], ordered[(x.numel() - 1) // 2])
        middle = torch.div(torch.rsub(ordered.isnan().sum(), x.numel() - 1), 2).to(torch.int64)
        return torch.ops.aten.index.Tensor(ordered, [middle])


@operators.recorder_of("aten::median.dim", "aten::nanmedian.dim", "aten::kthvalue")
def _selected(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The input, contiguous, before the results. Source: ATen/native/cuda/Sorting.cpp, `median_with_indices_impl`."""
    contiguous_copies(ctx, args[0])
    ctx.record(out)


_MAX_FUSED_MODE = 2048
"""Rows of up to so many elements are searched by one thread block each."""
_THRUST_ALIGNMENT = 128
_MAXIMUM_BYTES, _FIND_BYTES = 767, 69_391
"""Storage of Thrust's search for the largest count, and for where the value is."""


@operators.recorder_of("aten::mode")
def _mode(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Long rows are sorted one after the other, in a copy; the values of a row are assumed to be different.

    Not modeled: the storage of a count of booleans, 34 KiB; for bytes the sort's has up to 2.2 MiB too much.

    Source: ATen/native/cuda/TensorModeKernel.cpp, `mode_kernel_impl`; TensorModeKernel.cu, `ModeImpl`.
    """
    x = args[0]
    ctx.record(out)
    if x.device.type != "cuda" or not x.numel() or not x.dim():
        return
    dim = (args[1] if len(args) > 1 else kwargs.get("dim", -1)) % x.dim()
    length, item, device = x.shape[dim], x.element_size(), x.device
    is_copied = not x.transpose(dim, -1).is_contiguous()
    if length == 1 or (length <= _MAX_FUSED_MODE and not is_copied):
        return
    ctx.keep_until_done([ctx.scratch(x.numel() * item, device)])
    if length <= _MAX_FUSED_MODE or x.dtype is torch.bool:
        return
    if x.dtype.is_floating_point and item == 2:  # which Thrust compares, and does not sort by digits
        sort_bytes = cub_buffers.merge_sort_bytes(length, item, _INDEX_BYTES)
    else:
        # Thrust has the second buffers even for one pass over 8 bits.
        sort_bytes = cub_buffers.radix_sort_bytes(
            length,
            item,
            key_bits=max(16, 8 * item),
            value_bytes=_INDEX_BYTES,
            alignment=_THRUST_ALIGNMENT,
            capability=torch.cuda.get_device_capability(),
        )
    ctx.recorder.warn("what `mode` needs depends on the data; assumed: all values of a row are different")
    for _ in range(x.numel() // length):
        row = [ctx.scratch(length * _INDEX_BYTES, device)]
        for nbytes in (sort_bytes, cub_buffers.count_bytes(length) + _INT_BYTES):
            storage = ctx.scratch(nbytes, device)
            del storage
        row += [ctx.scratch(length * nbytes, device) for nbytes in (item, _INDEX_BYTES)]
        for nbytes in (cub_buffers.thrust_reduce_by_key_bytes(length), _MAXIMUM_BYTES, _FIND_BYTES):
            storage = ctx.scratch(nbytes, device)
            del storage
        del row


@operators.recorder_of("aten::randperm", "aten::randperm.generator")
def _permutation(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Numbers sorted by random keys, which have as many bits as keep nine of ten permutations free of equal keys.

    Source: ATen/native/cuda/Randperm.cu, `randperm_out_cuda`.
    """
    ctx.record(out)
    count, device = out.numel(), out.device
    if device.type != "cuda" or not count:
        return
    bits = min(64, math.ceil(math.log2(count - (6 * count * count + 1) / (12 * math.log(0.9)))))
    item, key = out.element_size(), 4 if bits <= _SHORT_KEY_BITS else 8
    shuffled = ctx.scratch(item, device)
    del shuffled
    ctx.keep_until_done([ctx.scratch(count * nbytes, device) for nbytes in (item, key, key)])
    nbytes = cub_buffers.radix_sort_bytes(
        count, key, key_bits=bits, value_bytes=item, capability=torch.cuda.get_device_capability()
    )
    ctx.keep_until_done([ctx.scratch(nbytes, device)])


@operators.shape_of("aten::multinomial")
def _multinomial(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Draws without replacement are the largest of the weights over random numbers; others need sums of the weights.

    Source: ATen/native/Distributions.cpp, `multinomial_out`; cuda/MultinomialKernel.cu,
    `multinomial_with_replacement_kernel_impl`.
    """
    weights, count = args[:2]
    if weights.device.type != "cuda" or not weights.numel():
        return NotImplemented
    shape = (*weights.shape[:-1], count)
    out = ctx.empty_strided(shape, contiguous_strides(shape), torch.int64, weights.device)
    ctx.record(out)
    if count > 1 and (args[2] if len(args) > 2 else kwargs.get("replacement", False)):
        nbytes = weights.numel() * weights.element_size()
        ctx.keep_until_done([ctx.scratch(nbytes, weights.device) for _ in ("weights", "normalized", "sums")])
        return out
    with ctx:
        low, high = torch.aminmax(weights)
        valid = (high < math.inf) & (low >= 0)
        zero = (weights.sum(-1) == 0).any() if weights.dim() > 1 else weights.sum() == 0
        _either = valid.logical_not()
        del _either
        quotients = torch.empty_like(weights)
    ctx.keep_until_done([low, high, valid, zero, quotients])
    if count > 1:
        ctx.keep_until_done([ctx.scratch(out.numel() * weights.element_size(), weights.device)])
    return out
