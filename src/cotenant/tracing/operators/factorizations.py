"""Factorizations of matrices and what solves with them: what PyTorch allocates around the routines of cuSOLVER.

Source: ATen/native/BatchLinearAlgebra.cpp and LinearAlgebra.cpp; ATen/native/cuda/linalg/BatchLinearAlgebra.cpp and
BatchLinearAlgebraLib.cpp; PyTorch 2.13. Not modeled: eigenvalues of matrices that are not symmetric.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.matrix_kernels import (
    BLOCK_COLUMNS,
    INDEX_BYTES,
    INFO_BYTES,
    NUMBERS_OF_SMALL_MATRIX,
    MatrixKernel,
)
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides

operators = OperatorTable()
operators.decompose("aten::linalg_pinv.atol_rtol_tensor")

_LARGE_MATRIX = 256 * 256
_ASSUMED = ("aten::_linalg_eigh", "aten::geqrf", "aten::linalg_householder_product", "aten::linalg_ldl_factor_ex",
            "aten::linalg_lstsq", "aten::linalg_qr", "aten::ormqr")  # fmt: skip
_LEFT_OUT = ("aten::_linalg_det", "aten::_linalg_eigvals", "aten::_linalg_slogdet", "aten::_linalg_solve_ex",
             "aten::_linalg_svd", "aten::cholesky_inverse", "aten::linalg_cholesky_ex", "aten::linalg_eig",
             "aten::linalg_inv_ex", "aten::linalg_lu", "aten::linalg_lu_factor_ex")  # fmt: skip


def _is_on_gpu(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda" and tensor.numel() > 0


def _check(ctx: OpContext, matrices: int, device: torch.device) -> None:
    """Whether any status is not 0; a single one is converted."""
    alive = [ctx.scratch(1, device) for _ in range(2 if matrices == 1 else 1)]
    del alive


@operators.recorder_of("aten::_linalg_check_errors")
def _check_errors(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    if _is_on_gpu(args[0]):
        _check(ctx, args[0].numel(), args[0].device)


@operators.recorder_of("aten::linalg_cholesky_ex")
def _cholesky(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if _is_on_gpu(args[0]):
        kernel = MatrixKernel(ctx, args[0])
        if kernel.batch > 1:
            kernel.addresses(of_blas=False)


@operators.recorder_of("aten::cholesky_solve", "aten::_cholesky_solve_helper")
def _cholesky_solve(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if _is_on_gpu(args[1]):
        MatrixKernel(ctx, args[1]).cholesky_solve()


@operators.recorder_of("aten::cholesky_inverse")
def _cholesky_inverse(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if _is_on_gpu(args[0]):
        kernel = MatrixKernel(ctx, args[0])
        ctx.keep_until_done([copy] if (copy := kernel.like(args[0])) is not None else [])
        kernel.cholesky_solve()


@operators.recorder_of("aten::_linalg_eigh")
def _eigh(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Vectors come before values, and are a copy of the matrix where they are not wanted."""
    values, vectors = out
    if not _is_on_gpu(args[0]):
        ctx.record(out)
        return
    kernel = MatrixKernel(ctx, args[0])
    ctx.record([vectors, values])
    ctx.keep_until_done(_kept(None if vectors.numel() else kernel.like(args[0]), kernel.infos()))
    kernel.eigenvalues()
    _check(ctx, kernel.batch, args[0].device)


@operators.recorder_of("aten::_linalg_svd")
def _svd(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """`svd_cusolver`: by Jacobi's method unless a driver is named, up to 32 x 32 by a routine for square matrices."""
    left, values, right = out
    matrix = args[0]
    if not _is_on_gpu(matrix):
        ctx.record(out)
        return
    kernel = MatrixKernel(ctx, matrix)
    full = bool(args[1]) if len(args) > 1 else bool(kwargs.get("full_matrices", False))
    ctx.record([left, right, values])
    ctx.keep_until_done(_kept(kernel.infos()))
    copy = kernel.like(matrix)
    rows, columns, least = kernel.rows, kernel.columns, min(kernel.rows, kernel.columns)
    driver = kwargs.get("driver")
    is_small = driver in (None, "gesvdj") and rows <= 32 and columns <= 32 and kernel.batch > 1
    if driver == "gesvd":
        most = max(rows, columns)
        scratch = [kernel.numbers(max(3 * least + most, 5 * least)), kernel.bytes(values.element_size() * least)]
        scratch += [kernel.numbers(least * right.shape[-1 if rows >= columns else -2])] if left.numel() else []
        del scratch
    elif driver == "gesvda":
        pass
    elif not left.numel():
        sizes = (
            (kernel.batch * rows * rows, kernel.batch * columns * columns)
            if is_small
            else (rows * least, columns * least)
        )
        unwanted = [kernel.numbers(size) for size in sizes]
        del unwanted
    elif is_small and rows != columns and not full:
        kernel.numbers(kernel.batch * (columns**2 if columns > rows else rows**2))
    del copy
    _check(ctx, kernel.batch, args[0].device)


@operators.recorder_of("aten::linalg_qr")
def _qr(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if not _is_on_gpu(args[0]):
        return
    kernel, q = MatrixKernel(ctx, args[0]), out[0]
    ctx.keep_until_done(_kept(kernel.numbers(kernel.batch * min(kernel.rows, kernel.columns))))
    if not q.numel() and kernel.rows > kernel.columns:
        ctx.keep_until_done(_kept(kernel.like(args[0])))
    kernel.qr(kernel.rows, kernel.columns)
    if q.numel():
        kernel.reflectors(q.shape[-1])


@operators.recorder_of("aten::linalg_householder_product")
def _householder_product(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if _is_on_gpu(args[0]):
        kernel = MatrixKernel(ctx, args[0])
        kernel.reflectors(kernel.columns)


@operators.recorder_of("aten::ormqr")
def _ormqr(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    matrix, other = args[0], args[2]
    if not _is_on_gpu(matrix):
        return
    kernel = MatrixKernel(ctx, matrix)
    if not _is_column_major(matrix):
        ctx.keep_until_done(_kept(kernel.like(matrix)))
    is_left = args[3] if len(args) > 3 else kwargs.get("left", True)
    kernel.reflectors(other.shape[-1 if is_left else -2])


@operators.recorder_of("aten::linalg_lu_factor_ex")
def _lu_factor(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if _is_on_gpu(args[0]):
        MatrixKernel(ctx, args[0]).lu_factor()


@operators.recorder_of("aten::linalg_lu")
def _lu(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if not _is_on_gpu(args[0]):
        return
    kernel = MatrixKernel(ctx, args[0])
    factors = kernel.like(args[0])
    ctx.keep_until_done(_kept(kernel.bytes(kernel.batch * min(kernel.rows, kernel.columns) * 4), kernel.infos()))
    kernel.lu_factor()
    del factors
    if out[0].numel():
        kernel.permutation()


@operators.recorder_of("aten::lu_unpack")
def _lu_unpack(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if _is_on_gpu(args[0]) and out[0].numel():
        MatrixKernel(ctx, args[0]).permutation()


@operators.recorder_of("aten::linalg_lu_solve")
def _lu_solve(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    factors, right = args[0], args[2]
    if not _is_on_gpu(factors) or not right.numel():
        return
    kernel = MatrixKernel(ctx, factors)
    adjoint = bool(kwargs.get("adjoint", False))
    if not kwargs.get("left", True):
        adjoint, right = not adjoint, right.mT
    if not _is_column_major(factors):
        ctx.keep_until_done(_kept(kernel.like(factors)))
    kernel.lu_solve(right.shape[-1], adjoint=adjoint)


@operators.recorder_of("aten::_linalg_solve_ex")
def _solve(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    matrix, right = args[:2]
    if not _is_on_gpu(matrix) or not right.numel():
        return
    kernel = MatrixKernel(ctx, matrix)
    kernel.lu_factor()
    is_vector = right.dim() == 1 or (matrix.dim() - 1 == right.dim() and right.shape == matrix.shape[:-1])
    if is_vector:
        ctx.keep_until_done(_kept(kernel.like(out[0])))
    kernel.lu_solve(1 if is_vector else right.shape[-1])


@operators.recorder_of("aten::linalg_inv_ex")
def _inverse(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if not _is_on_gpu(args[0]):
        return
    kernel = MatrixKernel(ctx, args[0])
    ctx.keep_until_done(_kept(kernel.like(args[0]), kernel.bytes(kernel.batch * kernel.columns * 4)))
    kernel.lu_factor()
    kernel.lu_solve(kernel.columns)


@operators.recorder_of("aten::_linalg_det", "aten::_linalg_slogdet")
def _determinant(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """The sign is from the number of rows that were exchanged."""
    ctx.record(out)
    if not _is_on_gpu(args[0]):
        return
    kernel = MatrixKernel(ctx, args[0])
    n, batch = kernel.columns, kernel.batch
    ctx.keep_until_done(_kept(kernel.infos()))
    kernel.lu_factor()
    product = kernel.numbers(batch) if func._opname == "_linalg_det" else None
    exchanged = [kernel.bytes(4 * n), kernel.bytes(n * batch), kernel.bytes(INDEX_BYTES * batch)]
    kernel.bytes(INDEX_BYTES * n * batch)
    del exchanged[:2]
    if func._opname == "_linalg_slogdet":
        signs = [kernel.numbers(n * batch), kernel.numbers(batch)]
        del signs
        exchanged.clear()
        kernel.numbers(n * batch)
    del product


@operators.recorder_of("aten::linalg_ldl_factor_ex")
def _ldl_factor(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if _is_on_gpu(args[0]):
        kernel = MatrixKernel(ctx, args[0])
        kernel.numbers(kernel.columns * BLOCK_COLUMNS)


@operators.recorder_of("aten::linalg_ldl_solve")
def _ldl_solve(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if _is_on_gpu(args[0]):
        kernel = MatrixKernel(ctx, args[0])
        ctx.keep_until_done(_kept(kernel.like(args[0]), kernel.bytes(kernel.rows * kernel.batch * INDEX_BYTES)))
        kernel.bytes(INFO_BYTES)


@operators.recorder_of("aten::linalg_solve_triangular")
def _triangular_solve(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.record(out)
    if _is_on_gpu(out):
        MatrixKernel(ctx, args[0]).triangular_solve()


def _kept(*tensors: FakeTensor | None) -> list[FakeTensor]:
    return [tensor for tensor in tensors if tensor is not None]


def _is_column_major(matrix: torch.Tensor) -> bool:
    return matrix.mT.is_contiguous()


@operators.assumption_for(*_ASSUMED, *_LEFT_OUT)
def _unknown_work_areas(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """A warning for matrices that are not small, and for batches of eigenvalues, whose work areas are not."""
    matrix = args[0]
    if not _is_on_gpu(matrix):
        return
    numbers = matrix.numel()
    if func._opname == "_linalg_eigh":
        numbers = max(numbers, matrix.shape[:-2].numel() * NUMBERS_OF_SMALL_MATRIX)
    if numbers >= _LARGE_MATRIX:
        name = func._opname.removeprefix("_").removesuffix("_ex")
        what = "assumed" if func.name() in _ASSUMED else "not counted"
        ctx.recorder.warn(f"the work area of `{name}` is {what}: its size is known on a GPU only")


@operators.shape_of("aten::linalg_lstsq")
def _least_squares(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(solution, residuals, rank, singular values) by `gels`, CUDA's only driver. The solution is a part of a copy.

    Source: `linalg_lstsq_out_info`, `lstsq_kernel`.
    """
    matrix, right = args[:2]
    kernel = MatrixKernel(ctx, matrix)
    rows, columns = kernel.rows, kernel.columns
    is_vector = matrix.dim() - 1 == right.dim() and right.shape == matrix.shape[:-1]
    lead, right_sides = matrix.shape[:-2], 1 if is_vector else right.shape[-1]
    ctx.keep_until_done(_kept(kernel.infos()))
    transposed = (*lead, right_sides, max(rows, columns))
    whole = ctx.empty_strided(transposed, contiguous_strides(transposed), matrix.dtype, matrix.device)
    ctx.record(whole)
    copy = kernel.like(matrix)
    if rows >= columns and rows <= 256 and kernel.batch >= max(2, rows // 16):
        broadcast = kernel.like(matrix)
        kernel.addresses(2)
        del broadcast
    else:
        scales = kernel.numbers(kernel.batch * min(rows, columns))
        adjoint = None if rows >= columns else kernel.like(matrix)
        kernel.qr(max(rows, columns), min(rows, columns))
        if rows >= columns:
            kernel.reflectors(right_sides)
            kernel.triangular_solve()
        else:
            kernel.triangular_solve()
            kernel.reflectors(right_sides)
        del adjoint, scales
    shape = ((*lead,) if is_vector else (*lead, right_sides)) if rows > columns else (0,)
    residuals = ctx.empty_strided(shape, contiguous_strides(shape), matrix.dtype, matrix.device)
    ctx.record(residuals)
    del copy
    _check(ctx, kernel.batch, matrix.device)
    solution = whole.mT.narrow(-2, 0, columns)
    rank = ctx.empty_strided((0,), (1,), torch.int64, matrix.device)
    values = ctx.empty_strided((0,), (1,), matrix.dtype, matrix.device)
    return solution.squeeze(-1) if is_vector else solution, residuals, rank, values
