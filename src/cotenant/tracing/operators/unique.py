"""Different values: `unique` and its kin, whose result depends on values, with what they allocate beside it.

Where the values are not known, all are assumed to be different, with a warning. Results have the storage of the
largest possible result: they are allocated at that size, and resized once the values are counted.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import label_maps
from cotenant.tracing.operators import cub_buffers
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides

operators = OperatorTable()

_INDEX_BYTES, _INT_BYTES = 8, 4
_DIFFERENCE_BYTES = 255
"""Storage of Thrust's `adjacent_difference`."""
ALL_DIFFERENT = "_cotenant_all_different"
"""An attribute of values that are assumed to be different."""
_Results = tuple[FakeTensor, FakeTensor, FakeTensor]


@operators.shape_of("aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive")
def _unique(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(values, inverse indices, counts); the latter two are empty unless requested."""
    source = args[0]
    bound = dict(zip([argument.name for argument in func._schema.arguments], args, strict=False)) | kwargs
    dim = bound.get("dim")
    value = ctx.known_values.of(source)
    value = label_maps.labels_of(source) if value is None else value
    if value is not None:
        count = func(value, *args[1:], **kwargs)[0].shape[0 if dim is None else dim]
    else:
        ctx.recorder.warn(
            f"the size that `{func._opname}` gives depends on the data; assumed: all values are different"
        )
        count = source.numel() if dim is None else source.shape[dim]
    wants_inverse, wants_counts = (bound.get(name, False) for name in ("return_inverse", "return_counts"))
    consecutive = func._opname.endswith("consecutive")
    if source.device.type != "cuda" or not source.numel():
        return _without_storage(ctx, source, dim, count, inverse=wants_inverse, counts=wants_counts)
    found = _on_gpu(ctx, source, dim, count, consecutive=consecutive, inverse=wants_inverse, counts=wants_counts)
    if value is None:
        setattr(found[0], ALL_DIFFERENT, True)
    return found


def _on_gpu(
    ctx: OpContext,
    source: torch.Tensor,
    dim: int | None,
    count: int,
    *,
    consecutive: bool,
    inverse: bool,
    counts: bool,
) -> _Results:
    if dim is not None:
        return _of_slices(
            ctx, source, dim % source.dim(), count, consecutive=consecutive, inverse=inverse, counts=counts
        )
    copies = [] if source.is_contiguous() else [ctx.scratch(source.numel() * source.element_size(), source.device)]
    if source.dtype is torch.bool and not consecutive:
        return _of_booleans(ctx, source, count, inverse=inverse)
    found = _of_values(ctx, source, count, consecutive=consecutive, inverse=inverse, counts=counts)
    del copies
    return found


@operators.shape_of("aten::_unique")
def _unique_without_counts(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The older operator, without counts, which the derivative of `index_fill` calls."""
    return _unique(ctx, func, args, kwargs)[:2]


def _numbers(ctx: OpContext, shape: tuple[int, ...], like: torch.Tensor, dtype: torch.dtype) -> FakeTensor:
    return ctx.empty_strided(shape, contiguous_strides(shape), dtype, like.device)


def _recorded(ctx: OpContext, count: int, like: torch.Tensor, dtype: torch.dtype = torch.int64) -> FakeTensor:
    """A row of `count` elements, allocated now."""
    made = _numbers(ctx, (count,), like, dtype)
    ctx.record(made)
    return made


def _without_storage(
    ctx: OpContext, source: torch.Tensor, dim: int | None, count: int, *, inverse: bool, counts: bool
) -> _Results:
    """On a CPU, or of nothing."""
    shape: tuple[int, ...] = (count,)
    every: tuple[int, ...] = tuple(source.shape)
    if dim is not None:
        shape = tuple(count if i == dim % source.dim() else size for i, size in enumerate(source.shape))
        every = (source.shape[dim],)
    return (
        _numbers(ctx, shape, source, source.dtype),
        _numbers(ctx, every if inverse else (0,), source, torch.int64),
        _numbers(ctx, (count,) if counts else (0,), source, torch.int64),
    )


def _of_booleans(ctx: OpContext, source: torch.Tensor, count: int, *, inverse: bool) -> _Results:
    """The true ones are counted. Source: aten/src/ATen/native/cuda/UniqueCub.cu, `UniqueCub<bool>`."""
    true_count = ctx.scratch(_INT_BYTES, source.device)
    storage = ctx.scratch(cub_buffers.count_bytes(source.numel()), source.device)
    del storage
    values, counts = _recorded(ctx, 2, source, torch.bool), _recorded(ctx, 2, source)
    indices = _numbers(ctx, tuple(source.shape) if inverse else (0,), source, torch.int64)
    ctx.record(indices)
    del true_count
    count = min(count, 2)
    return values.narrow(0, 0, count), indices, counts.narrow(0, 0, count)


def _of_values(
    ctx: OpContext, source: torch.Tensor, count: int, *, consecutive: bool, inverse: bool, counts: bool
) -> _Results:
    """Values are sorted, with their places for inverse indices, then compared with their neighbors.

    Source: aten/src/ATen/native/cuda/UniqueCub.cu, `UniqueCub`, `compute_unique`.
    """
    items, item, device = source.numel(), source.element_size(), source.device
    held: list[Any] = []
    if not consecutive:
        held.append(ctx.scratch(items * item, device))
        places = ctx.scratch(items * _INDEX_BYTES, device) if inverse else None
        held.extend([ctx.scratch(items * _INDEX_BYTES, device)] if inverse else [])
        value_bytes = _INDEX_BYTES if inverse else 0
        size = cub_buffers.radix_sort_bytes(
            items, item, key_bits=8 * item, value_bytes=value_bytes, capability=torch.cuda.get_device_capability()
        )
        storage = ctx.scratch(size, device)
        del storage, places
    indices = _numbers(ctx, tuple(source.shape) if inverse else (0,), source, torch.int64)
    ctx.record(indices)
    if inverse:
        differs = ctx.scratch(items * (_INT_BYTES if consecutive else _INDEX_BYTES), device)
        storage = ctx.scratch(cub_buffers.index_scan_bytes(items), device)
        del storage, differs
    values = _recorded(ctx, items, source, source.dtype)
    length = ctx.scratch(_INDEX_BYTES, device)
    runs = _recorded(ctx, items if counts else 0, source)
    size = cub_buffers.run_length_bytes(items) if counts else cub_buffers.unique_bytes(items, item)
    storage = ctx.scratch(size, device)
    del storage, length, held
    return values.narrow(0, 0, count), indices, runs.narrow(0, 0, count) if counts else runs


def _of_slices(
    ctx: OpContext, source: torch.Tensor, dim: int, count: int, *, consecutive: bool, inverse: bool, counts: bool
) -> _Results:
    """The places of the slices along `dim` are sorted by what is there; what is left of them is selected.

    Source: aten/src/ATen/native/cuda/Unique.cu, `unique_dim_cuda_template`, `compute_unique`.
    """
    items, device = source.shape[dim], source.device
    moved = source.transpose(dim, 0)
    copies = [] if moved.is_contiguous() else [ctx.scratch(source.numel() * source.element_size(), device)]
    places = ctx.scratch(items * _INDEX_BYTES, device)

    def used(nbytes: int) -> None:
        storage = ctx.scratch(nbytes, device)
        del storage

    if not consecutive:
        used(cub_buffers.merge_sort_bytes(items, _INDEX_BYTES))
    differs = ctx.scratch(items * _INDEX_BYTES, device) if inverse else None
    indices = _recorded(ctx, items if inverse else 0, source)
    if inverse:
        used(_DIFFERENCE_BYTES)
        used(cub_buffers.thrust_scan_bytes(items))
    del differs
    runs = _recorded(ctx, 0, source)
    if counts:
        starts = ctx.scratch((items + 1) * _INDEX_BYTES, device)
        used(cub_buffers.thrust_unique_bytes(items, by_key=True))
        runs = _recorded(ctx, count, source)
        used(_DIFFERENCE_BYTES)
        del starts
    else:
        used(cub_buffers.thrust_unique_bytes(items, by_key=False))
    shape = tuple(count if i == dim else size for i, size in enumerate(source.shape))
    values = _numbers(ctx, shape, source, source.dtype)
    ctx.record(values)
    del places, copies
    return values, indices, runs
