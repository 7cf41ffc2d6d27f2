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

_aten = torch.ops.aten
_FLOAT_BYTES = 4
_INDEX_BYTES = 8
_NO_REDUCTION = 0


# -- operands that a kernel wants in another order ------------------------------------------------------------------


def contiguous_copies(mode: Any, *tensors: Any) -> None:
    """Copies of those tensors whose elements are not in row-major order, until the call is over."""
    for each in tensors:
        if each is not None and not each.is_contiguous():
            mode.keep_until_done([_copy_of(mode, each)])


def blas_copies(mode: Any, *matrices: Any) -> None:
    """Copies of matrices, or batches of them, that are neither row-major nor transposed, until the call is over.

    Source: ATen/native/cuda/Blas.cpp, `prepare_matrix_for_cublas`, `prepare_batch_matrix_for_cublas`.
    """
    for each in matrices:
        if each.layout is not torch.strided or each.is_contiguous() or each.dim() < 2:
            continue
        (rows, columns), (down, across) = each.shape[-2:], each.stride()[-2:]
        if not ((across == 1 and down >= max(1, columns)) or (down == 1 and across >= max(1, rows))):
            mode.keep_until_done([_copy_of(mode, each)])


def _copy_of(mode: Any, tensor: Any) -> Any:
    return mode.scratch(tensor.numel() * tensor.element_size(), tensor.device)


# -- attention ------------------------------------------------------------------------------------------------------


def _efficient_backward(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Rows of the gradient in order, and the product whose sums are `delta`; the kernels of half precision need none.

    Source: ATen/native/transformers/cuda/attention_backward.cu, `_efficient_attention_backward`;
    mem_eff_attention/kernel_backward.h, `kKernelComputesDelta`. Not modeled: what half precision accumulates.
    """
    grad, query = args[0], args[1]
    contiguous_copies(mode, grad.transpose(1, 2))
    mode.note(out)
    delta_bytes = math.prod(query.shape[:3]) * _FLOAT_BYTES
    if query.dtype is torch.float32:
        product = mode.scratch(grad.numel() * _FLOAT_BYTES, grad.device)
        summed = mode.scratch(delta_bytes, grad.device)
        del product
        mode.keep_until_done([mode.scratch(delta_bytes, grad.device)])
        del summed
    else:
        mode.keep_until_done([mode.scratch(delta_bytes, grad.device)])


def _flash_backward(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Gradients of queries summed in float32, and those of keys and values for each query's head.

    Source: ATen/native/transformers/cuda/flash_attn/flash_api.cpp, `mha_bwd`. Not modeled: deterministic algorithms.
    """
    grad, query, key, _, result = args[:5]
    contiguous_copies(mode, grad.transpose(1, 2), result.transpose(1, 2))
    mode.note(out)
    batch, heads, length, head = query.shape
    length_up = -(-length // 128) * 128
    head_up = -(-head // 32) * 32 if head <= 192 else 256
    rows_bytes = batch * heads * length_up * _FLOAT_BYTES
    mode.keep_until_done([mode.scratch(rows_bytes, grad.device), mode.scratch(rows_bytes * head_up, grad.device)])
    if key.shape[1] != heads:
        each_bytes = batch * key.shape[2] * heads * head * key.element_size()
        mode.keep_until_done([mode.scratch(each_bytes, grad.device) for _ in "kv"])


# -- embeddings, indices, masks -------------------------------------------------------------------------------------

_MAX_UNSORTED_INDICES = 3072
_ROWS_PER_PARTIAL_SUM = 10


def _embedding_backward(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Indices sorted, and rows of the gradient summed in parts of ten, in float32 at least.

    Source: ATen/native/cuda/Embedding.cu, `embedding_dense_backward_cuda`; EmbeddingBackwardKernel.cu.
    """
    grad, indices, rows = args[:3]
    contiguous_copies(mode, grad)
    count, width = indices.numel(), out.shape[-1]
    if count <= _MAX_UNSORTED_INDICES:
        mode.note(out)
        return
    index_bytes = count * indices.element_size()
    mode.keep_until_done([mode.scratch(index_bytes, grad.device) for _ in ("sorted", "original")])
    mode.note(out)
    segments = min(count, int(rows))
    parts = count // _ROWS_PER_PARTIAL_SUM + segments
    sizes = (index_bytes, segments * _INDEX_BYTES, segments * _INDEX_BYTES, parts * _INDEX_BYTES)
    mode.keep_until_done([mode.scratch(each, grad.device) for each in sizes])
    mode.keep_until_done([mode.scratch(parts * width * max(_FLOAT_BYTES, grad.element_size()), grad.device)])


def _index_put(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Where values are added: the places in one row of numbers, sorted, with where they were.

    Source: ATen/native/cuda/Indexing.cu, `index_put_with_sort_kernel`.
    """
    mode.note(out)
    indices, values = args[1], args[2]
    if not (args[3] if len(args) > 3 else kwargs.get("accumulate", False)):
        return
    shapes = [each.shape for each in indices if each is not None and each.dtype is not torch.bool]
    if not shapes or values.device.type != "cuda":
        return
    places_bytes = math.prod(torch.broadcast_shapes(*shapes)) * _INDEX_BYTES
    mode.keep_until_done([mode.scratch(places_bytes, values.device) for _ in ("places", "sorted", "original", "range")])
    contiguous_copies(mode, values)


def _masked_scatter(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """How many elements of the mask are set before each. Source: ATen/native/cuda/IndexKernel.cpp."""
    mode.note(out)
    mode.keep_until_done([mode.scratch(out.numel() * _INDEX_BYTES, out.device)])


# -- losses, normalization ------------------------------------------------------------------------------------------


def _reduced_loss(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """The loss of each element, before it is reduced. Source: ATen/native/Loss.cpp, TORCH_IMPL_FUNC(mse_loss_out)."""
    names = [each.name for each in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    if given.get("reduction", 1) != _NO_REDUCTION:
        shape = torch.broadcast_shapes(given["self"].shape, given["target"].shape)
        mode.keep_until_done([mode.scratch(math.prod(shape) * out.element_size(), out.device)])
    mode.note(out)


def _contiguous_input(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Source: ATen/native/cuda/SoftMax.cu, `host_softmax`; layer_norm_kernel.cu, `layer_norm_cuda`."""
    contiguous_copies(mode, args[0])
    mode.note(out)


def _contiguous_inputs(mode: Any, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Of backward passes: the gradient, and the result or the input."""
    contiguous_copies(mode, args[0], args[1])
    mode.note(out)


RECORDERS: dict[Any, Any] = {
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten.index_put.default: _index_put,
    _aten.index_put_.default: _index_put,
    _aten._index_put_impl_.default: _index_put,
    _aten.masked_scatter.default: _masked_scatter,
    _aten.masked_scatter_.default: _masked_scatter,
    **dict.fromkeys((_aten.mse_loss.default, _aten.smooth_l1_loss.default, _aten.huber_loss.default), _reduced_loss),
    **dict.fromkeys(
        (_aten._softmax.default, _aten._log_softmax.default, _aten.native_layer_norm.default), _contiguous_input
    ),
    **dict.fromkeys(
        (
            _aten._softmax_backward_data.default,
            _aten._log_softmax_backward_data.default,
            _aten.native_layer_norm_backward.default,
        ),
        _contiguous_inputs,
    ),
}
"""What records a call, by operator."""

_COMPOSITE_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
_COMPOSITE_NON_FUNCTIONAL = torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional


def find_operator(name: str) -> Any:
    """The operator of that name, such as `sum` or `sum.dim_IntList`; None where this PyTorch has none."""
    packet, _, rest = name.partition(".")
    return getattr(getattr(_aten, packet, None), rest or "default", None)


def _decomposed(*names: str) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name in names:
        func = find_operator(name)
        for key in (_COMPOSITE_EXPLICIT, _COMPOSITE_NON_FUNCTIONAL):
            if func is not None and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key.name):
                found.setdefault(func, key)
    return found


DECOMPOSED = _decomposed(
    *("_safe_softmax", "_trilinear", "binary_cross_entropy_with_logits", "logsumexp", "logsumexp.out"),
    *("soft_margin_loss", "soft_margin_loss_backward"),
)
"""Operators of one implementation for all devices, made of others whose results are as large as their operands, with
the dispatch key of that implementation. Source: ATen/native/native_functions.yaml.
"""
