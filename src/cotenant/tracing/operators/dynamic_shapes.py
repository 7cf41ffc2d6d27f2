"""Operators whose output shape depends on values.

Where the values are known (see `known_values`), the shape is exact. Where they are not, the largest possible result is
assumed, with a warning: every element is found, every box is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import chosen_elements, deferred_values, mask_counts
from cotenant.tracing.assumptions.known_values import ALL_FOUND, assumption_of, max_elements
from cotenant.tracing.operators import cub_buffers
from cotenant.tracing.operators.fast_paths import view_of
from cotenant.tracing.operators.gradients_in_place import is_called_by_autograd
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.operators.strides import contiguous_strides

operators = OperatorTable()

_COUNT_BYTES = 4  # of how many positions were found
_BOXES_PER_MASK_WORD = 64  # of torchvision/csrc/ops/cuda/nms_kernel.cu: `sizeof(unsigned long long) * 8`


def _warn_assumed_size(ctx: OpContext, func: OpOverload, what: str) -> None:
    ctx.recorder.warn(f"the size that `{func._opname}` gives depends on the data; assumed: {what}")


def _empty_ints(
    ctx: OpContext, shape: tuple[int, ...], like: torch.Tensor, dtype: torch.dtype = torch.int64
) -> FakeTensor:
    return ctx.empty_strided(shape, contiguous_strides(shape), dtype, like.device)


@operators.shape_of("aten::nonzero")
def _nonzero(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(N, dimensions), column by column. Source: aten/src/ATen/native/cuda/Nonzero.cu, `nonzero_cuda_out_impl`."""
    return _positions(ctx, func, args[0])


def _positions(ctx: OpContext, func: OpOverload, mask: torch.Tensor, most: int | None = None) -> FakeTensor:
    """The positions, recorded: CUB counts them, and then selects them, with storage of its own."""
    if mask.device.type != "cuda" or not mask.numel():
        return _found_positions(ctx, func, mask, most)
    copies = [] if mask.is_contiguous() else [ctx.scratch(mask.numel() * mask.element_size(), mask.device)]
    count = ctx.scratch(_COUNT_BYTES, mask.device)
    partial_sums = ctx.scratch(cub_buffers.count_bytes(mask.numel()), mask.device)
    del partial_sums
    found = _found_positions(ctx, func, mask, most)
    ctx.record(found)
    selection = ctx.scratch(cub_buffers.select_bytes(mask.numel()), mask.device)
    del selection, count, copies
    return found


def _found_positions(ctx: OpContext, func: OpOverload, mask: torch.Tensor, most: int | None) -> FakeTensor:
    value = ctx.known_values.of(mask)
    if value is None:
        value = deferred_values.value_of(mask)
    bounds = (mask_counts.max_true(mask), chosen_elements.max_nonzero(mask))
    max_true = min((bound for bound in bounds if bound is not None), default=None)
    if value is None and most is not None and most < mask.numel():
        _warn_assumed_size(ctx, func, "as many are found as the source has elements")
        count = most
    elif value is None and max_true is not None and max_true < mask.numel():
        _warn_assumed_size(ctx, func, "as many are found as were set")
        count = max_true
    elif value is None:
        _warn_assumed_size(ctx, func, "every element is found")
        return _all_positions(ctx, mask)
    else:
        count = int(torch.count_nonzero(value))
        if why := assumption_of(mask):
            ctx.warn_assumed(why)
    return ctx.empty_strided((count, mask.dim()), (1, max(count, 1)), torch.int64, mask.device)


def _all_positions(ctx: OpContext, mask: torch.Tensor) -> FakeTensor:
    """Positions of all elements. They have values, so that what else is selected by them is known where it was known.

    A detector loops over the different labels of the boxes that it selects: a hundred classes, not 90,000 boxes.
    """
    count = mask.numel()
    found = ctx.empty_strided((count, mask.dim()), (1, max(count, 1)), torch.int64, mask.device)
    if found.numel() <= max_elements(ALL_FOUND):
        ctx.known_values.assume(found, torch.ones(mask.shape, dtype=torch.bool).nonzero(), ALL_FOUND)
    return found


@operators.shape_of("aten::index.Tensor")
def _index(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`x[mask]`: masks are converted to positions first. Source: ATen/native/IndexingUtils.h, `expandTensors`."""
    source, indices = args[0], args[1]
    if not isinstance(source, FakeTensor) or not any(_is_mask_or_cpu(index) for index in indices):
        return NotImplemented
    by_positions = (source, _positions_of_masks(ctx, func, source, indices))
    out = ctx.run_fake(func, by_positions, kwargs, source.fake_device)
    ctx.known_values.propagate(func, by_positions, kwargs, out)
    return out


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _is_mask_or_cpu(index: Any) -> bool:
    return _is_mask(index) or (index is not None and not isinstance(index, FakeTensor))


def _positions_of_masks(ctx: OpContext, func: OpOverload, source: FakeTensor, indices: Sequence[Any]) -> list[Any]:
    out: list[Any] = []
    for index in indices:
        # `expandTensors` converts masks only; `index.Tensor` then copies indices that are on the CPU to the GPU.
        if index is None or (isinstance(index, FakeTensor) and not _is_mask(index)):
            out.append(index)
        elif _is_mask(index):
            if isinstance(index, FakeTensor):
                found = _positions(ctx, func, index)
            else:
                found = _empty_ints(ctx, tuple(index.nonzero().shape), source)
            ctx.record(found)
            out.extend(found.select(1, dim) for dim in range(index.dim()))
        else:
            out.append(_empty_ints(ctx, tuple(index.shape), source, index.dtype))
            ctx.record(out[-1])
    return out


@operators.shape_of("aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
def _index_put(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """`x[mask] = y`. One value for a whole mask is a `masked_fill`, without positions.

    Source: ATen/native/TensorAdvancedIndexingUtils.h, `canDispatchToMaskedFill`.
    """
    target, indices, values = args[0], args[1], args[2]
    if not isinstance(target, FakeTensor):
        return NotImplemented
    if not any(_is_mask_or_cpu(index) for index in indices):
        return target if _is_gradient_of_index(func, args, kwargs) else NotImplemented
    masks_only = all(index is None or _is_mask(index) for index in indices)
    if not (values.numel() == 1 and masks_only):
        _positions_of_masks(ctx, func, target, indices)
    in_place = func._opname.endswith("_") or _is_gradient_of_index(func, args, kwargs)
    return target if in_place else ctx.empty_like(target)


def _is_gradient_of_index(func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """Whether autograd adds to zeros. Source: ATen/native/TensorAdvancedIndexing.cpp, `index_backward`."""
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    return accumulates and func._opname == "index_put" and is_called_by_autograd(nested=1)


@operators.shape_of("aten::masked_select")
def _masked_select(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    return _selected(ctx, func, *args)


def _selected(
    ctx: OpContext, func: OpOverload, source: torch.Tensor, mask: torch.Tensor, most: int | None = None
) -> FakeTensor:
    """Elements under a mask; at most `most`, if that is given and the mask is not known."""
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    mask = mask if mask.shape == shape else mask.expand(shape)
    positions = _positions(ctx, func, mask, most)
    ctx.record(positions)
    return ctx.empty_strided((positions.shape[0],), (1,), source.dtype, source.device)


@operators.shape_of("aten::masked_scatter_backward")
def _masked_scatter_backward(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Gradients under the mask, and zeros behind them where the source has more elements than the mask selects.

    Source: ATen/native/TensorAdvancedIndexing.cpp, `masked_scatter_backward_symint`.
    """
    grad, mask, shape = args
    size = math.prod(shape)
    selected = _selected(ctx, func, grad, mask, most=size)
    if selected.numel() < size:
        ctx.record(selected)
        zeros = ctx.empty_strided((size - selected.numel(),), (1,), grad.dtype, grad.device)
        ctx.record(zeros)
        ctx.keep_until_done([selected, zeros])
        selected = ctx.empty_strided((size,), (1,), grad.dtype, grad.device)
    return view_of(ctx, selected, shape, contiguous_strides(shape), 0)


@operators.shape_of("aten::repeat_interleave.Tensor")
def _repeat_interleave(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    repeats = args[0]
    size = kwargs.get("output_size")
    value = ctx.known_values.of(repeats)
    if value is not None:
        size = int(value.sum())
        if why := assumption_of(repeats):
            ctx.warn_assumed(why)
    elif size is None:
        _warn_assumed_size(ctx, func, "one copy of each")
        size = repeats.numel()
    return _empty_ints(ctx, (int(size),), repeats, repeats.dtype)


@operators.shape_of("aten::bincount")
def _bincount(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    source, weights = args[0], args[1] if len(args) > 1 else kwargs.get("weights")
    length = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    value = ctx.known_values.of(source)
    if value is None:
        _warn_assumed_size(ctx, func, "no value beyond `minlength`")
    elif value.numel():
        length = max(length, int(value.max()) + 1)
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    return _empty_ints(ctx, (length,), source, dtype)


@operators.shape_of("aten::_pack_padded_sequence")
def _pack_padded_sequence(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """(data, batch sizes on the CPU); the lengths are on the CPU, or it is an error, so the shape is exact.

    Steps of equal batch size are copied and then concatenated. Source: ATen/native/PackedSequence.cpp.
    """
    source, lengths, batch_first = args
    if lengths.device.type != "cpu":
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got one on {lengths.device}")
    steps_first = source.transpose(0, 1) if batch_first else source
    steps, batch = steps_first.shape[:2]
    rest = tuple(steps_first.shape[2:])
    _, batch_sizes = func(torch.empty(steps, batch, 1), lengths, False)
    copies = []
    sizes = batch_sizes.tolist()
    for size in sorted(set(sizes), reverse=True):
        if size == batch and not batch_first:
            continue
        of_size = (sizes.count(size) * size, math.prod(rest))
        copy = ctx.empty_strided(of_size, contiguous_strides(of_size), source.dtype, source.device)
        ctx.record(copy)
        copies.append(copy)
    shape = (sum(sizes), *rest)
    data = ctx.empty_strided(shape, contiguous_strides(shape), source.dtype, source.device)
    ctx.record(data)  # beside the copies
    return data, batch_sizes


@operators.shape_of("torchvision::nms")
def _nms(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Every box is kept. The kernel sorts the boxes, and has a bit for each pair of them.

    Source: torchvision/csrc/ops/cuda/nms_kernel.cu.
    """
    boxes = args[0]
    count = boxes.shape[0]
    _warn_assumed_size(ctx, func, "every box is kept")
    sorted_boxes = ctx.empty_like(boxes)
    ctx.record(sorted_boxes)
    pairs = _empty_ints(ctx, (count * math.ceil(count / _BOXES_PER_MASK_WORD),), boxes)
    ctx.record(pairs)
    return _empty_ints(ctx, (count,), boxes)


@operators.shape_of("aten::_nested_tensor_from_mask_left_aligned")
def _padding_not_aligned(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> bool:
    """False, as if some row had padding before its end.

    Otherwise `TransformerEncoder` would drop the padding by strided nested tensors, which are not modeled. With the
    padding, memory is an upper bound. Source: torch/nn/modules/transformer.py, `TransformerEncoder.forward`.
    """
    return False
