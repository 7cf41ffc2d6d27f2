"""Sparse (COO) tensors on the fake GPU: gradients of `Embedding(sparse=True)` and what optimizers do with them.

A sparse meta tensor forgets its indices and values, so a fake one carries them along. Not modeled: the scratch memory
of sorting in `coalesce`; products of two sparse matrices; compressed layouts (CSR and the like).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.strides import contiguous_strides

_aten = torch.ops.aten
_PARTS_ATTRIBUTE = "_cotenant_parts"


def sparse_parts(tensor: Any) -> tuple[Any, Any]:
    """(indices, values) of a fake sparse tensor."""
    return getattr(tensor, _PARTS_ATTRIBUTE)


def _make_sparse(mode: Any, size: Any, indices: Any, values: Any, sparse_dims: int) -> FakeTensor:
    shell = torch.sparse_coo_tensor(size=tuple(size), dtype=values.dtype, device="meta", check_invariants=False)
    shell.sparse_resize_(tuple(size), sparse_dims, len(size) - sparse_dims)
    made = FakeTensor(mode.fake, shell, values.device)
    setattr(made, _PARTS_ATTRIBUTE, (indices, values))
    return made


def _with_parts(mode: Any, like: Any, indices: Any, values: Any) -> FakeTensor:
    return _make_sparse(mode, like.shape, indices, values, indices.shape[0])


def _new(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    sparse_dims, _dense_dims, size, indices, values = args[:5]
    return _make_sparse(mode, size, indices, values, sparse_dims)


def _indices(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return sparse_parts(args[0])[0]


def _values(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return sparse_parts(args[0])[1]


def _nnz(mode: Any, func: Any, args: Any, kwargs: Any) -> int:
    return int(sparse_parts(args[0])[0].shape[1])


def _false(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    return False


def _first_argument(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


def _shallow_copy(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return _with_parts(mode, args[0], *sparse_parts(args[0]))


def to_copy(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`.to(...)`: indices and values, each for itself. Source: ATen/native/sparse/SparseTensor.cpp, `copy_sparse_`."""
    source = args[0]
    if source.layout is not torch.sparse_coo:
        return NotImplemented
    indices, values = sparse_parts(source) if isinstance(source, FakeTensor) else (source._indices(), source._values())
    device = kwargs.get("device") or values.device
    with mode:
        indices, values = indices.to(device, copy=True), values.to(device, kwargs.get("dtype"), copy=True)
    if values.is_cuda:
        return _make_sparse(mode, source.shape, indices, values, indices.shape[0])
    return torch.sparse_coo_tensor(indices, values, source.shape, check_invariants=False)


def _clone(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    with mode:
        indices, values = (each.clone() for each in sparse_parts(args[0]))
    return _with_parts(mode, args[0], indices, values)


def _to_sparse(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Every element is taken for one that is not zero. Source: ATen/native/TensorConversions.cpp, `dense_to_sparse`."""
    source = args[0]
    if (
        kwargs.get("layout") not in (None, torch.sparse_coo)
        or kwargs.get("dense_dim")
        or source.layout != torch.strided
    ):
        return NotImplemented
    sparse_dims = args[1] if len(args) > 1 else source.dim()
    mode.recorder.warn("the size that `to_sparse` gives depends on the data; assumed: no element is zero")
    with mode:
        values = source.reshape(-1, *source.shape[sparse_dims:]).clone()
        indices = torch.empty((sparse_dims, values.shape[0]), dtype=torch.int64, device=source.device)
    return _make_sparse(mode, source.shape, indices, values, sparse_dims)


def _coalesce(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Equal indices summed: as many rows as there are different ones, if they are known."""
    indices, values = sparse_parts(args[0])
    known = mode.values.of(indices)
    if known is None:
        mode.recorder.warn("the size that `coalesce` gives depends on the data; assumed: all indices are different")
        count = indices.shape[1]
    else:
        count = torch.unique(known, dim=1).shape[1]
    fewer = indices.new_empty((indices.shape[0], count))
    return _with_parts(mode, args[0], fewer, values.new_empty((count, *values.shape[1:])))


def _embedding_bag_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Gradient of `EmbeddingBag(sparse=True)`: a row for each index. Source: ATen/native/EmbeddingBag.cpp."""
    grad, indices, num_weights, is_sparse = args[0], args[1], args[6], args[9]
    if not is_sparse:
        return NotImplemented
    values = mode.empty_strided((indices.numel(), grad.shape[1]), (grad.shape[1], 1), grad.dtype, grad.device)
    with mode:
        rows = indices.reshape(1, -1)
    return _make_sparse(mode, (num_weights, grad.shape[1]), rows, values, 1)


def _sparse_mask(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Elements of a dense tensor where the sparse one has some."""
    dense, sparse = args[0], args[1]
    indices, values = sparse_parts(sparse)
    return _with_parts(mode, sparse, indices, values.new_empty(values.shape, dtype=dense.dtype))


def _add(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Sparse plus sparse: all rows of both, one after the other. Dense plus sparse: dense."""
    first, second = args[0], args[1]
    if first.layout is torch.strided:
        return first if func._opname.endswith("_") else mode.empty_like(first)
    (indices, values), (more_indices, more_values) = sparse_parts(first), sparse_parts(second)
    with mode:
        indices, values = torch.cat((indices, more_indices), 1), torch.cat((values, more_values))
    return _with_parts(mode, first, indices, values)


def _transpose(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Rows of indices change places; values are shared."""
    indices, values = sparse_parts(args[0])
    with mode:
        indices = indices.flip(0)
    return _make_sparse(mode, tuple(args[0].shape)[::-1], indices, values, 2)


def _sparse_matmul(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Sparse times dense: rows compressed, column indices in 32 bits, a dense result. cuSPARSE's buffer is left out.

    Source: ATen/native/sparse/cuda/SparseCUDATensorMath.cu, `s_addmm_out_sparse_dense_cuda`.
    """
    sparse, dense = args[-2:]
    if dense.layout is not torch.strided or not _is_sparse(sparse):
        return NotImplemented
    indices, values = sparse_parts(sparse)
    count = indices.shape[1]
    scratch = [
        mode.empty_strided((size,), (1,), torch.int32, sparse.device) for size in (sparse.shape[0] + 1, count, count)
    ]
    for each in scratch:
        mode.note(each)
    mode.keep_until_done(scratch)
    shape = (sparse.shape[0], dense.shape[1])
    return mode.empty_strided(shape, contiguous_strides(shape), values.dtype, sparse.device)


def _sum_of_values(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Sum of all values."""
    values = sparse_parts(args[0])[1]
    return mode.empty_strided((), (), kwargs.get("dtype") or values.dtype, values.device)


def _is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.layout is torch.sparse_coo


def _dense(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    values = sparse_parts(args[0])[1]
    return values.new_empty(args[0].shape)


SHAPE_FUNCTIONS: dict[Any, Any] = {
    _aten._sparse_coo_tensor_with_dims_and_tensors.default: _new,
    _aten._indices.default: _indices,
    _aten.indices.default: _indices,
    _aten._values.default: _values,
    _aten.values.default: _values,
    _aten._nnz.default: _nnz,
    _aten.is_coalesced.default: _false,
    _aten._coalesced_.default: _first_argument,
    _aten._coalesce.default: _coalesce,
    _aten._embedding_bag_backward.default: _embedding_bag_backward,
    _aten.sparse_mask.default: _sparse_mask,
    _aten._to_dense.default: _dense,
    _aten._to_sparse.default: _to_sparse,
    _aten._to_sparse.sparse_dim: _to_sparse,
}
SPARSE_SHAPE_FUNCTIONS: dict[Any, Any] = {
    _aten.detach.default: _shallow_copy,
    _aten.alias.default: _shallow_copy,
    _aten.clone.default: _clone,
    _aten.add.Tensor: _add,
    _aten.add_.Tensor: _add,
    _aten.zero_.default: _first_argument,
    _aten.mul_.Tensor: _first_argument,
    _aten.div_.Tensor: _first_argument,
    _aten.mul_.Scalar: _first_argument,
    _aten.t.default: _transpose,
    _aten.transpose.int: _transpose,
    _aten.mm.default: _sparse_matmul,
    _aten.addmm.default: _sparse_matmul,
    _aten._sparse_addmm.default: _sparse_matmul,
    _aten.sum.default: _sum_of_values,
}
"""Handlers of operators that dense tensors have, too; used where an argument is sparse."""
