"""Sparse (COO) tensors on the fake GPU: gradients of `Embedding(sparse=True)` and what optimizers do with them.

A sparse meta tensor has no indices and values, so the fake one has them as an attribute. Not modeled: products of two
sparse matrices; compressed layouts (CSR and the like).
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators import cub_buffers
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides
from cotenant.tracing.recorder import SPARSE_PARTS_ATTRIBUTE, sparse_parts

operators = OperatorTable()

_IS_COALESCED = "_cotenant_is_coalesced"
_INDEX_BYTES, _INT32_BYTES = 8, 4


def _make_sparse(ctx: OpContext, size: Any, indices: Any, values: Any, sparse_dims: int) -> FakeTensor:
    # Checks of invariants read the indices, which a meta tensor does not have.
    shell = torch.sparse_coo_tensor(size=tuple(size), dtype=values.dtype, device="meta", check_invariants=False)
    shell.sparse_resize_(tuple(size), sparse_dims, len(size) - sparse_dims)
    made = FakeTensor(ctx.fake, shell, values.device)
    setattr(made, SPARSE_PARTS_ATTRIBUTE, (indices, values))
    return made


def _with_parts(ctx: OpContext, like: Any, indices: Any, values: Any) -> FakeTensor:
    return _make_sparse(ctx, like.shape, indices, values, indices.shape[0])


@operators.shape_of("aten::_sparse_coo_tensor_with_dims_and_tensors")
def _new(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    sparse_dims, _dense_dims, size, indices, values = args[:5]
    made = _make_sparse(ctx, size, indices, values, sparse_dims)
    setattr(made, _IS_COALESCED, bool(kwargs.get("is_coalesced")))
    return made


@operators.shape_of("aten::_indices", "aten::indices")
def _indices(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return sparse_parts(args[0])[0]


@operators.shape_of("aten::_values", "aten::values")
def _values(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return sparse_parts(args[0])[1]


@operators.shape_of("aten::_nnz")
def _nnz(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> int:
    return int(sparse_parts(args[0])[0].shape[1])


@operators.shape_of("aten::is_coalesced")
def _is_coalesced(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    return getattr(args[0], _IS_COALESCED, False)


@operators.shape_of("aten::_coalesced_")
def _set_coalesced(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    setattr(args[0], _IS_COALESCED, bool(args[1]))
    return args[0]


@operators.sparse_shape_of("aten::zero_", "aten::mul_.Tensor", "aten::div_.Tensor", "aten::mul_.Scalar")
def _first_argument(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return args[0]


@operators.sparse_shape_of("aten::detach", "aten::alias")
def _shallow_copy(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return _alike(args[0], _with_parts(ctx, args[0], *sparse_parts(args[0])))


def _alike(source: Any, made: FakeTensor) -> FakeTensor:
    """What has the indices of `source` is coalesced if that is."""
    setattr(made, _IS_COALESCED, getattr(source, _IS_COALESCED, False))
    return made


def to_copy(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`.to(...)`: copies of indices and values. Source: ATen/native/sparse/SparseTensor.cpp, `copy_sparse_`."""
    source = args[0]
    if source.layout is not torch.sparse_coo:
        return NotImplemented
    indices, values = sparse_parts(source) if isinstance(source, FakeTensor) else (source._indices(), source._values())
    device = kwargs.get("device") or values.device
    with ctx:
        indices, values = indices.to(device, copy=True), values.to(device, kwargs.get("dtype"), copy=True)
    if values.is_cuda:
        return _make_sparse(ctx, source.shape, indices, values, indices.shape[0])
    return torch.sparse_coo_tensor(indices, values, source.shape, check_invariants=False)


@operators.sparse_shape_of("aten::clone")
def _clone(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return _alike(args[0], _with_parts(ctx, args[0], *_clones(ctx, args[0])))


def _clones(ctx: OpContext, source: Any) -> tuple[Any, Any]:
    """Copies of indices and values; that of the values is made first."""
    indices, values = sparse_parts(source)
    with ctx:
        values = values.clone()
        indices = indices.clone()
    return indices, values


@operators.shape_of("aten::_to_sparse", "aten::_to_sparse.sparse_dim")
def _to_sparse(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Assumed: no element is zero. Source: ATen/native/TensorConversions.cpp, `dense_to_sparse`."""
    source = args[0]
    if (
        kwargs.get("layout") not in (None, torch.sparse_coo)
        or kwargs.get("dense_dim")
        or source.layout != torch.strided
    ):
        return NotImplemented
    sparse_dims = args[1] if len(args) > 1 else source.dim()
    ctx.recorder.warn("the size that `to_sparse` gives depends on the data; assumed: no element is zero")
    with ctx:
        values = source.reshape(-1, *source.shape[sparse_dims:]).clone()
        indices = torch.empty((sparse_dims, values.shape[0]), dtype=torch.int64, device=source.device)
    return _make_sparse(ctx, source.shape, indices, values, sparse_dims)


@operators.shape_of("aten::_coalesce")
def _coalesce(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """One row per distinct index, if the indices are known; else assumed: all are distinct.

    Source: ATen/native/sparse/cuda/SparseCUDATensor.cu, `coalesce_sparse_cuda`.
    """
    return _coalesced(ctx, args[0])


def _coalesced(ctx: OpContext, source: Any) -> Any:
    indices, values = sparse_parts(source)
    if getattr(source, _IS_COALESCED, False):
        return source
    dims, given = indices.shape
    known = ctx.known_values.of(indices)
    if known is None:
        ctx.recorder.warn("the size that `coalesce` gives depends on the data; assumed: all indices are different")
        count = indices.shape[1]
    else:
        count = torch.unique(known, dim=1).shape[1]
    flat = indices.new_empty((1, given))
    places = [indices.new_empty((given,)) for _ in range(2)]
    ctx.record([flat, *places])
    for nbytes in (
        cub_buffers.merge_sort_bytes(given, _INDEX_BYTES, _INDEX_BYTES),
        cub_buffers.thrust_unique_bytes(given, by_key=True),
    ):
        ctx.scratch(nbytes, indices.device)
    fewer_values = values.new_empty((count, *values.shape[1:]))
    ctx.record(fewer_values)
    fewer = flat.narrow(1, 0, count) if dims == 1 else indices.new_empty((dims, count))
    ctx.record(fewer)
    made = _with_parts(ctx, source, fewer, fewer_values)
    setattr(made, _IS_COALESCED, True)
    return made


@operators.shape_of("aten::_embedding_bag_backward")
def _embedding_bag_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradient of `EmbeddingBag(sparse=True)`: a row per index. Source: ATen/native/EmbeddingBag.cpp."""
    grad, indices, num_weights, is_sparse = args[0], args[1], args[6], args[9]
    if not is_sparse:
        return NotImplemented
    values = ctx.empty_strided((indices.numel(), grad.shape[1]), (grad.shape[1], 1), grad.dtype, grad.device)
    with ctx:
        rows = indices.reshape(1, -1)
    return _make_sparse(ctx, (num_weights, grad.shape[1]), rows, values, 1)


@operators.shape_of("aten::sparse_mask")
def _sparse_mask(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The elements of a dense tensor at the indices of a sparse one."""
    dense, sparse = args[0], args[1]
    indices, values = sparse_parts(sparse)
    return _with_parts(ctx, sparse, indices, values.new_empty(values.shape, dtype=dense.dtype))


@operators.sparse_shape_of("aten::add.Tensor", "aten::add_.Tensor")
def _add(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Sparse plus sparse: the rows of both, concatenated. Dense plus sparse: dense."""
    first, second = args[0], args[1]
    if first.layout is torch.strided:
        return first if func._opname.endswith("_") else ctx.empty_like(first)
    (indices, values), (more_indices, more_values) = sparse_parts(first), sparse_parts(second)
    with ctx:
        indices, values = torch.cat((indices, more_indices), 1), torch.cat((values, more_values))
    return _with_parts(ctx, first, indices, values)


@operators.sparse_shape_of("aten::mul.Tensor", "aten::mul.Scalar", "aten::div.Tensor", "aten::div.Scalar")
def _scaled(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """By a number: copies of the indices, and new values.

    Source: ATen/native/sparse/SparseTensorMath.cpp, `mul_out_sparse_zerodim`.
    """
    source, factor = args if _is_sparse(args[0]) else args[::-1]
    if isinstance(factor, torch.Tensor) and (_is_sparse(factor) or factor.dim() > 0):
        return NotImplemented
    indices, values = sparse_parts(source)
    with ctx:
        indices, values = indices.clone(), func(values, factor)
    return _alike(source, _with_parts(ctx, source, indices, values))


@operators.sparse_shape_of("aten::t", "aten::transpose.int")
def _transpose(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """A copy, in which two rows of indices change their places.

    Source: ATen/native/TensorShape.cpp, `sparse_transpose_`.
    """
    indices, values = _clones(ctx, args[0])
    ctx.scratch(indices.shape[1] * _INDEX_BYTES, indices.device)
    return _make_sparse(ctx, tuple(args[0].shape)[::-1], indices, values, 2)


@operators.sparse_shape_of("aten::mm", "aten::addmm", "aten::_sparse_addmm")
def _sparse_matmul(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Sparse times dense gives dense; the indices are converted to compressed rows of int32 first.

    The result is computed in a column-major copy, of a matrix of zeros in place of a summand. Not modeled: cuSPARSE's
    buffer. Source: ATen/native/sparse/cuda/SparseCUDATensorMath.cu, `s_addmm_out_sparse_dense_cuda`.
    """
    sparse, dense = args[-2:]
    if dense.layout is not torch.strided or not _is_sparse(sparse):
        return NotImplemented
    shape = (sparse.shape[0], dense.shape[1])
    dtype = sparse_parts(sparse)[1].dtype
    results = [
        ctx.empty_strided(shape, contiguous_strides(shape), dtype, sparse.device)
        for _ in range(2 if func._opname == "mm" else 1)
    ]
    ctx.record(results)
    ctx.keep_until_done(results[:-1])
    sparse = _coalesced(ctx, sparse)
    count = sparse_parts(sparse)[0].shape[1]
    row_starts = ctx.scratch((sparse.shape[0] + 1) * _INT32_BYTES, sparse.device)
    ctx.scratch(count * _INT32_BYTES, sparse.device)  # the rows, which go at once
    columns = ctx.scratch(count * _INT32_BYTES, sparse.device)
    copy = ctx.scratch(results[-1].numel() * results[-1].element_size(), sparse.device)
    del row_starts, columns, copy
    return results[-1]


@operators.sparse_shape_of("aten::sum")
def _sum_of_values(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Sum of all values."""
    values = sparse_parts(args[0])[1]
    return ctx.empty_strided((), (), kwargs.get("dtype") or values.dtype, values.device)


def _is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.layout is torch.sparse_coo


@operators.shape_of("aten::_to_dense")
def _dense(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Source: ATen/native/sparse/cuda/SparseCUDATensorMath.cu, `add_out_dense_sparse_cuda`: places in one dimension."""
    indices, values = sparse_parts(args[0])
    made = values.new_empty(args[0].shape)
    ctx.record(made)
    ctx.scratch(indices.shape[1] * _INDEX_BYTES, indices.device)
    return made
