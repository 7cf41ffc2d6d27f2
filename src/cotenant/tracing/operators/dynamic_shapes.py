"""Operators whose result has a size that depends on values.

Where the values are known (see `values`) the size is exact. Where they are not, the largest possible result is
assumed: every element is found, every box is kept, every value is different. A warning says so.

Not modeled: the scratch memory of CUB's scans and sorts, a few bytes for each element.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import mask_counts
from cotenant.tracing.assumptions.known_values import assumption_of
from cotenant.tracing.operators.strides import contiguous_strides

_aten = torch.ops.aten
_BOXES_PER_MASK_WORD = 64  # boxes for each word of torchvision's overlap mask


def _warn_assumed_size(mode: Any, func: Any, what: str) -> None:
    mode.recorder.warn(f"the size that `{func._opname}` gives depends on the data; assumed: {what}")


def _empty_ints(mode: Any, shape: tuple[int, ...], like: torch.Tensor, dtype: torch.dtype = torch.int64) -> FakeTensor:
    return mode.empty_strided(shape, contiguous_strides(shape), dtype, like.device)


def _nonzero(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """(N, dimensions), column by column. Source: aten/src/ATen/native/cuda/Nonzero.cu, `nonzero_cuda_out_impl`."""
    return _positions(mode, func, args[0])


def _positions(mode: Any, func: Any, mask: torch.Tensor) -> FakeTensor:
    value = mode.values.of(mask)
    most = mask_counts.max_true(mask)
    if value is None and most is not None and most < mask.numel():
        _warn_assumed_size(mode, func, "as many are found as were set")
        count = most
    elif value is None:
        _warn_assumed_size(mode, func, "every element is found")
        count = mask.numel()
    else:
        count = int(torch.count_nonzero(value))
        if why := assumption_of(mask):
            mode.warn_assumed(why)
    return mode.empty_strided((count, mask.dim()), (1, max(count, 1)), torch.int64, mask.device)


def _index(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`x[mask]`: masks become positions first. Source: ATen/native/IndexingUtils.h, `expandTensors`."""
    source, indices = args[0], args[1]
    if not isinstance(source, FakeTensor) or not any(_is_mask_or_cpu(each) for each in indices):
        return NotImplemented
    return mode.run_fake(func, (source, _positions_of_masks(mode, func, source, indices)), kwargs, source.fake_device)


def _is_mask_or_cpu(index: Any) -> bool:
    return index is not None and (index.dtype in (torch.bool, torch.uint8) or not isinstance(index, FakeTensor))


def _positions_of_masks(mode: Any, func: Any, source: FakeTensor, indices: Any) -> list[Any]:
    out: list[Any] = []
    for each in indices:
        if each is None:
            out.append(None)
        elif each.dtype in (torch.bool, torch.uint8):
            if isinstance(each, FakeTensor):
                found = _positions(mode, func, each)
            else:
                found = _empty_ints(mode, tuple(each.nonzero().shape), source)
            mode.note(found)
            out.extend(found.select(1, dim) for dim in range(each.dim()))
        elif isinstance(each, FakeTensor):
            out.append(each)
        else:
            out.append(_empty_ints(mode, tuple(each.shape), source, each.dtype))
            mode.note(out[-1])
    return out


def _index_put(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`x[mask] = y`. One value for all of a mask needs no positions: `canDispatchToMaskedFill`."""
    target, indices, values = args[0], args[1], args[2]
    if not isinstance(target, FakeTensor) or not any(_is_mask_or_cpu(each) for each in indices):
        return NotImplemented
    masks_only = all(each is None or each.dtype in (torch.bool, torch.uint8) for each in indices)
    if not (values.numel() == 1 and masks_only):
        _positions_of_masks(mode, func, target, indices)
    return target if func._opname.endswith("_") else mode.empty_like(target)


def _masked_select(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    source, mask = args
    shape = torch.broadcast_shapes(source.shape, mask.shape)
    whole, mask = source.expand(shape), mask.expand(shape)
    positions = _positions(mode, func, mask)
    mode.note(positions)
    return mode.empty_strided((positions.shape[0],), (1,), source.dtype, whole.device)


def _unique(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Values, where each came from, how often each occurs; the latter two empty unless asked for."""
    source = args[0]
    bound = dict(zip([each.name for each in func._schema.arguments], args, strict=False)) | kwargs
    dim = bound.get("dim")
    value = mode.values.of(source)
    most = source.numel() if dim is None else source.shape[dim]
    if value is None:
        _warn_assumed_size(mode, func, "all values are different")
        count = most
    else:
        count = func(value, *args[1:], **kwargs)[0].shape[0 if dim is None else dim]
    if dim is None:
        shape: tuple[int, ...] = (count,)
        came_from = tuple(source.shape)
    else:
        shape = tuple(count if each == dim % source.dim() else size for each, size in enumerate(source.shape))
        came_from = (most,)
    default_inverse = func._opname == "unique_dim"
    inverse = came_from if bound.get("return_inverse", default_inverse) else (0,)
    counts = (count,) if bound.get("return_counts", default_inverse) else (0,)
    out = mode.empty_strided(shape, contiguous_strides(shape), source.dtype, source.device)
    return (out, _empty_ints(mode, inverse, source), _empty_ints(mode, counts, source))


def _unique_without_counts(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """The older operator, without counts; the derivative of `index_fill` asks it."""
    return _unique(mode, func, args, kwargs)[:2]


def _repeat_interleave(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    repeats = args[0]
    size = kwargs.get("output_size")
    value = mode.values.of(repeats)
    if value is not None:
        size = int(value.sum())
        if why := assumption_of(repeats):
            mode.warn_assumed(why)
    elif size is None:
        _warn_assumed_size(mode, func, "one copy of each")
        size = repeats.numel()
    return _empty_ints(mode, (int(size),), repeats, repeats.dtype)


def _bincount(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    source, weights = args[0], args[1] if len(args) > 1 else kwargs.get("weights")
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    value = mode.values.of(source)
    if value is None:
        _warn_assumed_size(mode, func, "no value beyond `minlength`")
    elif value.numel():
        least = max(least, int(value.max()) + 1)
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype is torch.float32 else torch.float64
    return _empty_ints(mode, (least,), source, dtype)


def _pack_padded_sequence(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """(data, batch sizes on the CPU); the lengths are on the CPU, so this is exact.

    Pieces of equal batch size are copied and then joined. Source: ATen/native/PackedSequence.cpp.
    """
    source, lengths, batch_first = args
    steps_first = source.transpose(0, 1) if batch_first else source
    steps, batch = steps_first.shape[:2]
    rest = tuple(steps_first.shape[2:])
    _, batch_sizes = func(torch.empty(steps, batch, 1), lengths, False)
    pieces = []
    sizes = batch_sizes.tolist()
    for size in sorted(set(sizes), reverse=True):
        if size == batch and not batch_first:
            continue
        piece = mode.empty_strided((sizes.count(size) * size, math.prod(rest)), (1, 1), source.dtype, source.device)
        mode.note(piece)
        pieces.append(piece)
    shape = (sum(sizes), *rest)
    return (mode.empty_strided(shape, contiguous_strides(shape), source.dtype, source.device), batch_sizes)


def nms(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """Every box kept. Source: torchvision/csrc/ops/cuda/nms_kernel.cu: sorted boxes and a bit for each pair."""
    boxes = args[0]
    count = boxes.shape[0]
    _warn_assumed_size(mode, func, "every box is kept")
    in_order = mode.empty_like(boxes)
    mode.note(in_order)
    pairs = _empty_ints(mode, (count * math.ceil(count / _BOXES_PER_MASK_WORD),), boxes)
    mode.note(pairs)
    return _empty_ints(mode, (count,), boxes)


def _least_squares(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """(solution, residuals, rank, singular values) by `gels`, the one method of CUDA, beside copies of both matrices.

    Source: ATen/native/BatchLinearAlgebra.cpp, `linalg_lstsq`.
    """
    matrix, right = args[:2]
    rows, columns = matrix.shape[-2:]
    is_vector = matrix.dim() - 1 == right.dim() and right.shape == matrix.shape[:-1]
    lead, beside = matrix.shape[:-2], (() if is_vector else right.shape[-1:])
    mode.keep_until_done(copies := [mode.empty_like(matrix), mode.empty_like(right)])
    mode.note(copies)
    shapes = [(*lead, columns, *beside), (*lead, *beside) if rows > columns else (0,)]
    made = [mode.empty_strided(each, contiguous_strides(each), matrix.dtype, matrix.device) for each in shapes]
    return (*made, _empty_ints(mode, (0,), matrix), mode.empty_strided((0,), (1,), matrix.dtype, matrix.device))


def _padding_not_aligned(mode: Any, func: Any, args: Any, kwargs: Any) -> bool:
    """Whether padding is at the end of all rows: then `TransformerEncoder` leaves it out, by nested tensors.

    They are not modeled, so padding is kept, as where it is not at the end: an upper bound.
    """
    return False


SHAPE_FUNCTIONS: dict[Any, Any] = {
    _aten.linalg_lstsq.default: _least_squares,
    _aten._nested_tensor_from_mask_left_aligned.default: _padding_not_aligned,
    _aten.nonzero.default: _nonzero,
    _aten.index.Tensor: _index,
    _aten.index_put_.default: _index_put,
    _aten.index_put.default: _index_put,
    _aten._index_put_impl_.default: _index_put,
    _aten.masked_select.default: _masked_select,
    _aten._unique.default: _unique_without_counts,
    _aten._unique2.default: _unique,
    _aten.unique_dim.default: _unique,
    _aten.unique_consecutive.default: _unique,
    _aten.unique_dim_consecutive.default: _unique,
    _aten.repeat_interleave.Tensor: _repeat_interleave,
    _aten.bincount.default: _bincount,
    _aten._pack_padded_sequence.default: _pack_padded_sequence,
}
