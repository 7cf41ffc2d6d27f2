"""Fourier transforms: what PyTorch allocates around calls of cuFFT, and cuFFT's work areas.

A plan transforms up to three dimensions. The other dimensions are one batch, for which the input may have to be copied,
and a complex input of a real result is copied, because cuFFT may overwrite it. The size of a work area is in cuFFT's
plan alone, which is made on a GPU. Published sizes are one copy of the complex data: 16 plans of two dimensions in
arrayfire/arrayfire#1443, one without and one with a batch in JuliaGPU/CUDA.jl#894. Powers of 2 need none in cuFFT's
device library up to 32,768, which is assumed here for one dimension.
Source: ATen/native/cuda/SpectralOps.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_MAX_PLANNED_DIMS = 3
_MAX_WITHOUT_WORK_AREA = 32_768
WORK_AREAS = (
    "work areas of cuFFT are assumed: a copy of the complex data for transforms over several dimensions, and over "
    "lengths that are no power of 2"
)


@operators.recorder_of("aten::_fft_r2c")
def _real_to_complex(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """`_fft_r2c_cufft`."""
    source, dims = args[0], list(args[1])
    ctx.record(out)
    if not _is_on_gpu(out):
        return
    plan = _Plans(ctx, out, lengths=source.shape)
    if _is_one_plan(dims):
        plan.run(_layout(source), dims)
        return
    plan.run(_layout(source), dims[-1:])
    if len(dims) > 1:
        ctx.keep_until_done([_like(ctx, out)])
        plan.run_all(_layout(out), dims[:-1])


@operators.recorder_of("aten::_fft_c2c")
def _complex_to_complex(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """`_fft_c2c_cufft`."""
    source, dims = args[0], list(args[1])
    ctx.record(out)
    if not _is_on_gpu(out) or not dims:
        return
    if len(dims) > _MAX_PLANNED_DIMS:
        ctx.keep_until_done([_like(ctx, out)])
    _Plans(ctx, out, lengths=out.shape).run_all(_layout(source), dims)


@operators.recorder_of("aten::_fft_c2r")
def _complex_to_real(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """`_fft_c2r_cufft`."""
    source, dims = args[0], list(args[1])
    ctx.record(out)
    if not _is_on_gpu(out):
        return
    ctx.keep_until_done([_like(ctx, source)])  # a copy, or the result of the other dimensions
    plan = _Plans(ctx, source, lengths=out.shape)
    copied = torch.empty(source.shape, dtype=source.dtype, device="meta")
    if _is_one_plan(dims):
        plan.run(copied, dims)
        return
    if len(dims) > 1:
        plan.run_all(_layout(source), dims[:-1])
    plan.run(copied, dims[-1:])


def _is_on_gpu(out: Any) -> bool:
    return isinstance(out, FakeTensor) and out.fake_device.type == "cuda" and out.numel() > 0


def _layout(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _like(ctx: OpContext, tensor: torch.Tensor) -> FakeTensor:
    return ctx.scratch(tensor.numel() * tensor.element_size(), tensor.device)


def _is_one_plan(dims: Sequence[int]) -> bool:
    """`use_optimized_cufft_path`; where PyTorch has none, it transforms the last dimension by itself."""
    has_path = hasattr(torch._meta_registrations, "use_optimized_cufft_path")
    return has_path and len(dims) <= _MAX_PLANNED_DIMS and list(dims[:2]) != [0, 1]


class _Plans:
    """What plans allocate: a copy of the input where the batch is no view of it, and a work area.

    `complex_side`: the input or the result, whichever is complex; `lengths`: of the transforms, by dimension.
    """

    def __init__(self, ctx: OpContext, complex_side: torch.Tensor, *, lengths: Sequence[int]) -> None:
        self._ctx, self._complex_side, self._lengths = ctx, complex_side, lengths

    def run(self, source: torch.Tensor, dims: Sequence[int]) -> None:
        """`_exec_fft`, of a source of this layout."""
        batch = sorted(set(range(source.dim())) - set(dims), key=lambda dim: -source.stride(dim))
        permuted = source.permute(*batch, *dims)
        device = self._complex_side.device
        try:
            permuted.view(-1, *(source.shape[dim] for dim in dims))
        except RuntimeError:  # the batch cannot be one dimension
            self._ctx.keep_until_done([self._ctx.scratch(source.numel() * source.element_size(), device)])
        length = self._lengths[dims[0]]
        if len(dims) > 1 or length > _MAX_WITHOUT_WORK_AREA or length & (length - 1):
            work_area = _like(self._ctx, self._complex_side)
            del work_area
            self._ctx.recorder.warn(WORK_AREAS)

    def run_all(self, source: torch.Tensor, dims: Sequence[int]) -> None:
        """Transforms between complex numbers, those of small strides first."""
        rest = sorted(dims, key=lambda dim: -source.stride(dim))
        while rest:
            self.run(source, rest[-_MAX_PLANNED_DIMS:])
            del rest[-_MAX_PLANNED_DIMS:]
