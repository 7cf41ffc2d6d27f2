"""Embeddings: copies of indices, and the sorted sums of the backward pass.

Sizes of CUB's buffers were read from a CUDA build of torch 2.13 on a null GPU (decision 0053). They are those of
compute capability 8.0; others have tiles of other sizes, which changes them by less than 1 %.
"""

from __future__ import annotations

import itertools
from typing import Any

from torch._ops import OpOverload

from cotenant.tracing.operators.kernel_scratch import contiguous_copies
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_FLOAT_BYTES = 4
_INDEX_BYTES = 8
_MAX_UNSORTED_INDICES = 3072
_ROWS_PER_PARTIAL_SUM = 10
_ALIGNMENT = 256
_RADIX_BITS = 8
_SORT_TILE, _UNIQUE_TILE, _SCAN_TILE = 3840, 1344, 896
"""Items for each thread block of a radix sort, of `unique_by_key` and of a prefix sum."""
_TILE_STATE_BYTES = 16
_PADDING_TILES = 32


@operators.recorder_of("aten::embedding")
def _embedding(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Indices that cannot be viewed as one dimension are copied. Source: ATen/native/Embedding.cpp."""
    indices = args[1]
    if indices.dim() > 1 and not _is_flat(indices):
        ctx.keep_until_done([ctx.scratch(indices.numel() * indices.element_size(), indices.device)])
    ctx.record(out)


def _is_flat(tensor: Any) -> bool:
    """Whether `reshape(-1)` of it is a view."""
    extents = [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]
    return all(stride == size * step for (_, stride), (size, step) in itertools.pairwise(extents))


@operators.recorder_of("aten::embedding_dense_backward")
def _embedding_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Sorted indices, and partial sums of ten rows of the gradient each, in float32 or wider.

    Up to 3,072 indices another kernel is used, which sorts nothing.

    Source: ATen/native/cuda/Embedding.cu, `embedding_dense_backward_cuda`; EmbeddingBackwardKernel.cu.
    """
    grad, indices, rows = args[:3]
    contiguous_copies(ctx, indices, grad)
    count, width = indices.numel(), out.shape[-1]
    if count <= _MAX_UNSORTED_INDICES:
        ctx.record(out)
        return

    def scratch(nbytes: int) -> Any:
        return ctx.scratch(nbytes, grad.device)

    index_bytes = count * indices.element_size()
    ctx.keep_until_done([scratch(index_bytes) for _ in ("sorted", "original")])
    positions = scratch(index_bytes)
    buffer = scratch(radix_sort_bytes(count, indices.element_size(), key_bits=int(rows).bit_length()))
    del buffer, positions
    ctx.record(out)
    ctx.keep_until_done([scratch(index_bytes), scratch(_INDEX_BYTES)])
    unique = scratch(index_bytes)
    buffer = scratch(scan_bytes(count, _UNIQUE_TILE))
    del buffer, unique
    segments = min(count, int(rows))
    ctx.keep_until_done([scratch(segments * _INDEX_BYTES) for _ in ("sizes", "offsets")])
    buffer = scratch(scan_bytes(segments, _SCAN_TILE))
    del buffer
    parts = count // _ROWS_PER_PARTIAL_SUM + segments
    ctx.keep_until_done([scratch(_INDEX_BYTES), scratch(parts * _INDEX_BYTES)])
    ctx.keep_until_done([scratch(parts * width * max(_FLOAT_BYTES, grad.element_size()))])


def radix_sort_bytes(items: int, item_bytes: int, *, key_bits: int) -> int:
    """Temporary storage of CUB's radix sort of pairs: a second buffer for both, histograms, and counts of the tiles.

    Source: cub/device/dispatch/dispatch_radix_sort.cuh, `InvokeOnesweep`.
    """
    passes = -(-key_bits // _RADIX_BITS)
    bins = 1 << _RADIX_BITS
    second = 2 * _aligned(items * item_bytes) if passes > 1 else 0
    return second + passes * bins * 8 + -(-items // _SORT_TILE) * bins * 4 + 2 * _ALIGNMENT - 1


def scan_bytes(items: int, tile: int) -> int:
    """Temporary storage of a prefix sum or a selection by CUB: a state for each tile of items.

    Source: cub/agent/single_pass_scan_operators.cuh, `ScanTileState::AllocationSize`.
    """
    tiles = -(-items // tile) + _PADDING_TILES
    return _aligned(tiles * _TILE_STATE_BYTES) + 2 * _ALIGNMENT - 1


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
