"""Scratch memory: what CUDA kernels allocate beside their results, and free before they return.

A kernel makes such tensors below the dispatcher, where no dispatch mode sees them. Each recorder here records the
result and the scratch memory, in the order in which the kernel allocates them. An operator that PyTorch implements by
other operators on every device is decomposed instead, at the end of this module.

The buffers of reductions depend on the GPU: see `reductions`. Not modeled: buffers of CUB's sorts and scans, a few
bytes for each element.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_FLOAT_BYTES = 4
_INDEX_BYTES = 8
_NO_REDUCTION = 0


# -- operands that a kernel needs in another layout ------------------------------------------------------------------


def contiguous_copies(ctx: OpContext, *tensors: Any) -> None:
    """Record copies of the tensors that are not contiguous, which live until the call is over."""
    for tensor in tensors:
        if tensor is not None and not tensor.is_contiguous():
            ctx.keep_until_done([_copy_of(ctx, tensor)])


def blas_copies(ctx: OpContext, *matrices: Any) -> None:
    """Record copies of matrices, or batches of them, that are neither row-major nor transposed.

    Source: ATen/native/cuda/Blas.cpp, `prepare_matrix_for_cublas`, `prepare_batch_matrix_for_cublas`.
    """
    for matrix in matrices:
        if matrix.layout is not torch.strided or matrix.is_contiguous() or matrix.dim() < 2:
            continue
        (rows, columns), (down, across) = matrix.shape[-2:], matrix.stride()[-2:]
        if not ((across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))):
            ctx.keep_until_done([_copy_of(ctx, matrix)])


def _copy_of(ctx: OpContext, tensor: Any) -> Any:
    return ctx.scratch(tensor.numel() * tensor.element_size(), tensor.device)


# -- attention ------------------------------------------------------------------------------------------------------


@operators.recorder_of("aten::_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """A contiguous gradient, and `delta`, the row sums of output times gradient.

    The float32 kernel computes `delta` outside, from a product of the gradient's size; those of half precision, inside.

    Source: ATen/native/transformers/cuda/attention_backward.cu, `_efficient_attention_backward`;
    mem_eff_attention/kernel_backward.h, `kKernelComputesDelta`. Not modeled: what half precision accumulates.
    """
    grad, query = args[0], args[1]
    contiguous_copies(ctx, grad.transpose(1, 2))
    ctx.record(out)
    delta_bytes = math.prod(query.shape[:3]) * _FLOAT_BYTES
    if query.dtype is torch.float32:
        product = ctx.scratch(grad.numel() * _FLOAT_BYTES, grad.device)
        summed = ctx.scratch(delta_bytes, grad.device)
        del product
        ctx.keep_until_done([ctx.scratch(delta_bytes, grad.device)])
        del summed
    else:
        ctx.keep_until_done([ctx.scratch(delta_bytes, grad.device)])


@operators.recorder_of("aten::_scaled_dot_product_flash_attention_backward")
def _flash_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Float32 accumulators for the gradient of queries, and with grouped queries one key and value gradient per head.

    Source: ATen/native/transformers/cuda/flash_attn/flash_api.cpp, `mha_bwd`. Not modeled: deterministic algorithms.
    """
    grad, query, key, _, result = args[:5]
    contiguous_copies(ctx, grad.transpose(1, 2), result.transpose(1, 2))
    ctx.record(out)
    batch, heads, length, head = query.shape
    length_up = -(-length // 128) * 128
    head_up = -(-head // 32) * 32 if head <= 192 else 256
    rows_bytes = batch * heads * length_up * _FLOAT_BYTES
    ctx.keep_until_done([ctx.scratch(rows_bytes, grad.device), ctx.scratch(rows_bytes * head_up, grad.device)])
    if key.shape[1] != heads:
        per_head_bytes = batch * key.shape[2] * heads * head * key.element_size()
        ctx.keep_until_done([ctx.scratch(per_head_bytes, grad.device) for _ in "kv"])


# -- embeddings, indices, masks -------------------------------------------------------------------------------------

_MAX_UNSORTED_INDICES = 3072
_ROWS_PER_PARTIAL_SUM = 10


@operators.recorder_of("aten::embedding_dense_backward")
def _embedding_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Sorted indices, and partial sums of ten rows of the gradient each, in float32 or wider.

    Up to 3,072 indices another kernel is used, which sorts nothing.

    Source: ATen/native/cuda/Embedding.cu, `embedding_dense_backward_cuda`; EmbeddingBackwardKernel.cu.
    """
    grad, indices, rows = args[:3]
    contiguous_copies(ctx, grad)
    count, width = indices.numel(), out.shape[-1]
    if count <= _MAX_UNSORTED_INDICES:
        ctx.record(out)
        return
    index_bytes = count * indices.element_size()
    ctx.keep_until_done([ctx.scratch(index_bytes, grad.device) for _ in ("sorted", "original")])
    ctx.record(out)
    segments = min(count, int(rows))
    parts = count // _ROWS_PER_PARTIAL_SUM + segments
    sizes = (index_bytes, segments * _INDEX_BYTES, segments * _INDEX_BYTES, parts * _INDEX_BYTES)
    ctx.keep_until_done([ctx.scratch(size, grad.device) for size in sizes])
    ctx.keep_until_done([ctx.scratch(parts * width * max(_FLOAT_BYTES, grad.element_size()), grad.device)])


@operators.recorder_of("aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
def _index_put(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """With `accumulate`: linear indices, the same sorted, and their original positions.

    Source: ATen/native/cuda/Indexing.cu, `index_put_with_sort_kernel`.
    """
    ctx.record(out)
    indices, values = args[1], args[2]
    if not (args[3] if len(args) > 3 else kwargs.get("accumulate", False)):
        return
    shapes = [index.shape for index in indices if index is not None and index.dtype is not torch.bool]
    if not shapes or values.device.type != "cuda":
        return
    indices_bytes = math.prod(torch.broadcast_shapes(*shapes)) * _INDEX_BYTES
    ctx.keep_until_done([ctx.scratch(indices_bytes, values.device) for _ in ("linear", "sorted", "original", "range")])
    contiguous_copies(ctx, values)


@operators.recorder_of("aten::masked_scatter", "aten::masked_scatter_")
def _masked_scatter(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The prefix sum of the mask, in int64. Source: ATen/native/cuda/IndexKernel.cpp."""
    ctx.record(out)
    ctx.keep_until_done([ctx.scratch(out.numel() * _INDEX_BYTES, out.device)])


# -- losses, normalization ------------------------------------------------------------------------------------------


@operators.recorder_of("aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss")
def _reduced_loss(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The unreduced loss. Source: ATen/native/Loss.cpp, TORCH_IMPL_FUNC(mse_loss_out)."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("reduction", 1) != _NO_REDUCTION:
        shape = torch.broadcast_shapes(given["self"].shape, given["target"].shape)
        ctx.keep_until_done([ctx.scratch(math.prod(shape) * out.element_size(), out.device)])
    ctx.record(out)


@operators.recorder_of("aten::_softmax", "aten::_log_softmax", "aten::native_layer_norm")
def _contiguous_input(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The input, contiguous. Source: ATen/native/cuda/SoftMax.cu, `host_softmax`; layer_norm_kernel.cu."""
    contiguous_copies(ctx, args[0])
    ctx.record(out)


@operators.recorder_of(
    "aten::_softmax_backward_data", "aten::_log_softmax_backward_data", "aten::native_layer_norm_backward"
)
def _contiguous_inputs(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Backward passes need the gradient, and the result or the input, contiguous."""
    contiguous_copies(ctx, args[0], args[1])
    ctx.record(out)


# Their results are as large as their operands, and so are those of the operators that they call.
# Source: ATen/native/native_functions.yaml.
operators.decompose(
    "aten::_safe_softmax",
    "aten::_trilinear",
    "aten::binary_cross_entropy_with_logits",
    "aten::logsumexp",
    "aten::logsumexp.out",
    "aten::soft_margin_loss",
    "aten::soft_margin_loss_backward",
)
