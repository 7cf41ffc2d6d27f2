"""What CUDA kernels allocate inside, beside their results, and give back before they return.

No dispatch mode sees it: such tensors are made below the dispatcher, by the kernel's own code. Each function here is
told a call and its result, and records both the result and the scratch memory, in the order in which the kernel takes
them. Operators that PyTorch writes in terms of others for every device are opened instead: see `DECOMPOSED`.

Those of reductions depend on the GPU: see `reductions`. Not modeled: buffers of CUB's sorts and scans, a few bytes for
each element.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._ops import OpOverload

from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_aten = torch.ops.aten
_FLOAT_BYTES = 4
_INDEX_BYTES = 8
_NO_REDUCTION = 0


# -- operands that a kernel wants in another order ------------------------------------------------------------------


def contiguous_copies(ctx: OpContext, *tensors: Any) -> None:
    """Copies of those tensors whose elements are not in row-major order, until the call is over."""
    for each in tensors:
        if each is not None and not each.is_contiguous():
            ctx.keep_until_done([_copy_of(ctx, each)])


def blas_copies(ctx: OpContext, *matrices: Any) -> None:
    """Copies of matrices, or batches of them, that are neither row-major nor transposed, until the call is over.

    Source: ATen/native/cuda/Blas.cpp, `prepare_matrix_for_cublas`, `prepare_batch_matrix_for_cublas`.
    """
    for each in matrices:
        if each.layout is not torch.strided or each.is_contiguous() or each.dim() < 2:
            continue
        (rows, columns), (down, across) = each.shape[-2:], each.stride()[-2:]
        if not ((across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))):
            ctx.keep_until_done([_copy_of(ctx, each)])


def _copy_of(ctx: OpContext, tensor: Any) -> Any:
    return ctx.scratch(tensor.numel() * tensor.element_size(), tensor.device)


# -- attention ------------------------------------------------------------------------------------------------------


@operators.recorder_of("aten::_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Rows of the gradient in order, and the product whose sums are `delta`; the kernels of half precision need none.

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
    """Gradients of queries summed in float32, and those of keys and values for each query's head.

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
        each_bytes = batch * key.shape[2] * heads * head * key.element_size()
        ctx.keep_until_done([ctx.scratch(each_bytes, grad.device) for _ in "kv"])


# -- embeddings, indices, masks -------------------------------------------------------------------------------------

_MAX_UNSORTED_INDICES = 3072
_ROWS_PER_PARTIAL_SUM = 10


@operators.recorder_of("aten::embedding_dense_backward")
def _embedding_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Indices sorted, and rows of the gradient summed in parts of ten, in float32 at least.

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
    ctx.keep_until_done([ctx.scratch(each, grad.device) for each in sizes])
    ctx.keep_until_done([ctx.scratch(parts * width * max(_FLOAT_BYTES, grad.element_size()), grad.device)])


@operators.recorder_of("aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
def _index_put(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Where values are added: the places in one row of numbers, sorted, with where they were.

    Source: ATen/native/cuda/Indexing.cu, `index_put_with_sort_kernel`.
    """
    ctx.record(out)
    indices, values = args[1], args[2]
    if not (args[3] if len(args) > 3 else kwargs.get("accumulate", False)):
        return
    shapes = [each.shape for each in indices if each is not None and each.dtype is not torch.bool]
    if not shapes or values.device.type != "cuda":
        return
    places_bytes = math.prod(torch.broadcast_shapes(*shapes)) * _INDEX_BYTES
    ctx.keep_until_done([ctx.scratch(places_bytes, values.device) for _ in ("places", "sorted", "original", "range")])
    contiguous_copies(ctx, values)


@operators.recorder_of("aten::masked_scatter", "aten::masked_scatter_")
def _masked_scatter(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """How many elements of the mask are set before each. Source: ATen/native/cuda/IndexKernel.cpp."""
    ctx.record(out)
    ctx.keep_until_done([ctx.scratch(out.numel() * _INDEX_BYTES, out.device)])


# -- losses, normalization ------------------------------------------------------------------------------------------


@operators.recorder_of("aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss")
def _reduced_loss(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The loss of each element, before it is reduced. Source: ATen/native/Loss.cpp, TORCH_IMPL_FUNC(mse_loss_out)."""
    names = [each.name for each in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("reduction", 1) != _NO_REDUCTION:
        shape = torch.broadcast_shapes(given["self"].shape, given["target"].shape)
        ctx.keep_until_done([ctx.scratch(math.prod(shape) * out.element_size(), out.device)])
    ctx.record(out)


@operators.recorder_of("aten::_softmax", "aten::_log_softmax", "aten::native_layer_norm")
def _contiguous_input(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Source: ATen/native/cuda/SoftMax.cu, `host_softmax`; layer_norm_kernel.cu, `layer_norm_cuda`."""
    contiguous_copies(ctx, args[0])
    ctx.record(out)


@operators.recorder_of(
    "aten::_softmax_backward_data", "aten::_log_softmax_backward_data", "aten::native_layer_norm_backward"
)
def _contiguous_inputs(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Of backward passes: the gradient, and the result or the input."""
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
