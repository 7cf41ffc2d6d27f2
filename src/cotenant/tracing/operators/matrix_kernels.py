"""What routines of cuSOLVER and cuBLAS for matrices request: status words, arrays of addresses, work areas.

A batch of small matrices goes to a batched routine, which reads the address of each matrix from an array; others are
computed one after the other, with one work area. Only cuSOLVER itself says how large that is, on a GPU. Assumed here:
what LAPACK documents for the routine of the same name, and nothing where it has none. For eigenvalues of a batch there
are two reports of cuSOLVER 11.7 (mujocolab/mjlab#732 and #754): 16,384 matrices of 4 x 4 take 4.4 GB, and 32,768 are
too many for 32-bit sizes, so that a small matrix has 65,536 numbers. The null GPU has the same work areas, in
nullgpu/csrc/cusolver.c.
Source: ATen/native/cuda/linalg/BatchLinearAlgebra.cpp, BatchLinearAlgebraLib.cpp and BatchLinearAlgebraLibBlas.cpp,
PyTorch 2.13.
"""

from __future__ import annotations

import math

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.registry import OpContext

_ADDRESS_BYTES = INDEX_BYTES = 8
INFO_BYTES = 4
BLOCK_COLUMNS = 32  # LAPACK, `ilaenv`
NUMBERS_OF_SMALL_MATRIX = 65_536
_MAX_BATCHED_LU = 128  # seen with PyTorch 2.13 on a null GPU


class MatrixKernel:
    """Memory of one call: of matrices like `matrix`, on a GPU.

    Attributes:
        rows, columns, batch: of the matrix; the batch is 1 for a single one.
    """

    def __init__(self, ctx: OpContext, matrix: torch.Tensor) -> None:
        self._ctx, self._matrix = ctx, matrix
        self.rows, self.columns = matrix.shape[-2:]
        self.batch = math.prod(matrix.shape[:-2])
        self.element_bytes = matrix.element_size()

    def bytes(self, nbytes: int) -> FakeTensor | None:
        """Memory until the last reference goes; None for none."""
        return self._ctx.scratch(nbytes, self._matrix.device) if nbytes else None

    def numbers(self, count: int) -> FakeTensor | None:
        """Numbers of the matrix's type."""
        return self.bytes(count * self.element_bytes)

    def like(self, tensor: torch.Tensor) -> FakeTensor | None:
        """A copy."""
        return self.bytes(tensor.numel() * tensor.element_size())

    def infos(self) -> FakeTensor | None:
        """A status for each matrix."""
        return self.bytes(self.batch * INFO_BYTES)

    def addresses(self, arrays: int = 1, *, of_blas: bool = True) -> None:
        """Arrays of addresses, of a batched routine; cuBLAS has its workspace since its first call."""
        alive = [self.bytes(self.batch * _ADDRESS_BYTES) for _ in range(arrays)]
        if of_blas:
            self.blas()
        del alive

    def blas(self) -> None:
        """A call of cuBLAS."""
        dtype = str(self._matrix.dtype).removeprefix("torch.")
        self._ctx.record_call("gemm", self._matrix.device, dtype=dtype)

    def work_areas(self, numbers: int) -> None:
        """A work area for one matrix after the other."""
        for _ in range(self.batch):
            self.numbers(numbers)

    # -- the routines ----------------------------------------------------------------------------------------------

    def lu_factor(self) -> None:
        """`lu_factor`: cuBLAS for a batch of small square matrices. Not modeled: many of them go to MAGMA."""
        if self.batch > 1 and self.rows == self.columns <= _MAX_BATCHED_LU:
            self.addresses()

    def triangular_solve(self) -> None:
        """`triangular_solve_kernel`."""
        if self.batch > 8 or min(self.rows, self.columns) < 64:
            self.addresses(2)
        else:
            self.blas()

    def lu_solve(self, right_sides: int, *, adjoint: bool = False) -> None:
        """`lu_solve_kernel`, for right sides in place."""
        n, pair = self.columns, self.batch <= 2
        if n == right_sides:
            by_solver, by_blas = False, n <= 16
        elif n <= 64:
            by_solver = n > 8 and pair and (right_sides <= 64 or adjoint or n <= 32)
            by_blas = n <= 8 or right_sides <= 8
        else:
            by_solver = by_blas = n <= 128 and right_sides <= 2
            by_solver = by_solver and pair
        if by_solver:
            self.bytes(INFO_BYTES)
        elif by_blas:
            self.addresses(2)
        else:
            self._lu_solve_by_triangles(right_sides, adjoint=adjoint)

    def _lu_solve_by_triangles(self, right_sides: int, *, adjoint: bool) -> None:
        permutation = self.permutation()
        right = self.columns * right_sides * self.batch
        if adjoint:
            self.triangular_solve()
            self.triangular_solve()
            self.numbers(right)
            return
        identity = self.bytes(self.columns * INDEX_BYTES)
        inverse = self.bytes(self.columns * self.batch * INDEX_BYTES)
        permuted = self.numbers(right)
        self.triangular_solve()
        self.triangular_solve()
        del permuted, inverse, identity, permutation

    def permutation(self) -> FakeTensor | None:
        """A range, copied for each matrix of a batch."""
        one = self.bytes(self.rows * INDEX_BYTES)
        return one if self._matrix.dim() == 2 else self.bytes(self.rows * self.batch * INDEX_BYTES)

    def cholesky_solve(self) -> None:
        """`_cholesky_solve_helper_cuda_cusolver_algo_selector`."""
        if self.batch == 1:
            info = self.bytes(INFO_BYTES)
            self.like(self._matrix)
            del info
        else:
            self.triangular_solve()
            self.triangular_solve()

    def qr(self, rows: int, columns: int) -> None:
        """`geqrf_kernel`."""
        if rows <= 256 and self.batch >= max(2, rows // 16):
            self.addresses(2)
        else:
            info = self.bytes(INFO_BYTES)
            self.work_areas(columns * BLOCK_COLUMNS)
            del info

    def reflectors(self, columns: int) -> None:
        """`orgqr_helper_cusolver`, `ormqr_cusolver`."""
        info = self.bytes(INFO_BYTES)
        self.work_areas(columns * BLOCK_COLUMNS)
        del info

    def eigenvalues(self) -> None:
        """`linalg_eigh_cusolver_syevj_batched`, which serves single matrices, too."""
        n = self.columns
        numbers = 1 + 6 * n + 2 * n * n
        self.numbers(self.batch * max(NUMBERS_OF_SMALL_MATRIX, numbers))
