"""Embeddings: copies of indices, and the sorted sums of the backward pass."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.operators import cub_buffers
from cotenant.tracing.operators.kernel_scratch import contiguous_copies
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_FLOAT_BYTES = 4
_MODE_MAX = 2
_INDEX_BYTES = 8
_MAX_UNSORTED_INDICES = 3072
_ROWS_PER_PARTIAL_SUM = 10
_FEW_ROWS = 432
_MIN_INDICES_PER_ROW = 30
"""Tables of fewer rows than four for each SM, here of an A100, that so many indices share, are summed without partial
sums: seen on a null GPU with torch 2.13 (decision 0053)."""


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

    _sorted_sums(ctx, indices, rows, width, max(_FLOAT_BYTES, grad.element_size()), out)


def _sorted_sums(ctx: OpContext, indices: Any, rows: int, width: int, sum_bytes: int, out: Any) -> None:
    """Record `out`, the sums of a gradient's rows by index, and what sorts the indices.

    Source: ATen/native/cuda/Embedding.cu; EmbeddingBackwardKernel.cu, `embedding_backward_cuda_kernel`.
    """
    count = indices.numel()

    def scratch(nbytes: int) -> Any:
        return ctx.scratch(nbytes, indices.device)

    index_bytes = count * indices.element_size()
    ctx.keep_until_done([scratch(index_bytes) for _ in ("sorted", "original")])
    positions = scratch(index_bytes)
    buffer = scratch(
        cub_buffers.radix_sort_bytes(
            count,
            indices.element_size(),
            key_bits=int(rows).bit_length(),
            capability=torch.cuda.get_device_capability(),
        )
    )
    del buffer, positions
    ctx.record(out)
    ctx.keep_until_done([scratch(index_bytes), scratch(_INDEX_BYTES)])
    unique = scratch(index_bytes)
    buffer = scratch(cub_buffers.scan_bytes(count, cub_buffers.UNIQUE_TILE))
    del buffer, unique
    segments = min(count, int(rows))
    ctx.keep_until_done([scratch(segments * _INDEX_BYTES) for _ in ("sizes", "offsets")])
    buffer = scratch(cub_buffers.scan_bytes(segments, cub_buffers.SCAN_TILE))
    del buffer
    parts = count // _ROWS_PER_PARTIAL_SUM + segments
    ctx.keep_until_done([scratch(_INDEX_BYTES), scratch(parts * _INDEX_BYTES)])
    if rows < _FEW_ROWS and count >= _MIN_INDICES_PER_ROW * rows:
        ctx.keep_until_done([scratch(parts * _INDEX_BYTES)])
    else:
        ctx.keep_until_done([scratch(parts * width * sum_bytes)])


@operators.recorder_of("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def _embedding_bag(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The result after the sizes and numbers of the bags. Source: ATen/native/cuda/EmbeddingBag.cu."""
    result, bag_of_index, bag_sizes, largest = out
    ctx.record((bag_sizes, bag_of_index, result, largest))


@operators.recorder_of("aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward")
def _embedding_bag_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """As of an embedding; the gradient of a maximum is added without sorting.

    Source: ATen/native/EmbeddingBag.cpp, `_embedding_bag_backward_symint`; cuda/EmbeddingBag.cu.
    """
    given = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | kwargs
    grad, indices, rows = given["grad"], given["indices"], int(given["num_weights"])
    if out.layout is not torch.strided or not indices.numel():
        ctx.record(out)
        return
    contiguous_copies(ctx, indices, grad)
    if given["mode"] == _MODE_MAX:
        ctx.record(out)
    else:
        _sorted_sums(ctx, indices, rows, out.shape[-1], max(_FLOAT_BYTES, grad.element_size()), out)
