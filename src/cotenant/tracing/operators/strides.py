"""Strides of new CUDA tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._prims_common import suggest_memory_format

_formats: dict[tuple[torch.Size, tuple[int, ...]], torch.memory_format] = {}


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def is_non_overlapping_and_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory without holes or overlaps, in any order of dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def preserved_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides of an elementwise result: those of the tensor if it is dense, else dense in the order of its dimensions.

    Source: `torch.preserve_format`; ATen/ExpandUtils.cpp, `infer_dense_strides`, sorts as TensorIterator does.
    """
    if is_non_overlapping_and_dense(tensor):
        return tuple(tensor.stride())
    shape, strides = tensor.shape, tensor.stride()
    order = list(reversed(range(len(shape))))  # from the innermost dimension on
    for start in range(1, len(order)):
        place = start
        for before in reversed(range(start)):
            inner, outer = order[before], order[place]
            # A stride of 0, of an expanded dimension, compares as equal to all others.
            if not strides[inner] or not strides[outer]:
                continue
            if strides[inner] < strides[outer]:
                break
            if strides[inner] > strides[outer] or shape[inner] > shape[outer]:
                order[before], order[place], place = outer, inner, before
    made, step = [0] * len(order), 1
    for dim in order:
        made[dim] = step
        step *= max(shape[dim], 1)
    return tuple(made)


def copy_strides(tensor: torch.Tensor, memory_format: torch.memory_format | None) -> tuple[int, ...]:
    """Strides of a copy of `tensor` in a memory format; None preserves."""
    if memory_format in (None, torch.preserve_format):
        return preserved_strides(tensor)
    if memory_format is torch.contiguous_format:
        return contiguous_strides(tensor.shape)
    return memory_format_strides(tensor.shape, memory_format)


def memory_format_strides(shape: Sequence[int], memory_format: torch.memory_format) -> tuple[int, ...]:
    """Strides of a dense tensor in a memory format that does not depend on another tensor."""
    if memory_format is torch.contiguous_format:
        return contiguous_strides(shape)
    order = {torch.channels_last: (0, 2, 3, 1), torch.channels_last_3d: (0, 2, 3, 4, 1)}[memory_format]
    if len(shape) != len(order):
        raise RuntimeError(
            f"required rank {len(order)} tensor to use {str(memory_format).removeprefix('torch.')} format"
        )
    inner = contiguous_strides([shape[dim] for dim in order])
    return tuple(inner[order.index(dim)] for dim in range(len(shape)))


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """`Tensor.suggest_memory_format` of ATen, cached by shape and strides."""
    if tensor.layout is not torch.strided:
        return torch.contiguous_format
    # torch's function is in Python and compares as for symbolic sizes: 25 to 41 calls for an image (torch 2.13).
    key = (tensor.shape, tensor.stride())
    found = _formats.get(key)
    if found is None:
        found = _formats[key] = suggest_memory_format(tensor)
    return found


def view_strides(tensor: torch.Tensor, shape: Sequence[int]) -> tuple[int, ...] | None:
    """Strides of a view with `shape`, of as many elements; None where only a copy can have it.

    Dimensions that are contiguous in memory form a run; a view splits each run separately.
    Source: aten/src/ATen/TensorUtils.cpp, `computeStride_impl`.
    """
    if not tensor.numel():
        return None
    sizes, strides = (tensor.shape, tensor.stride()) if tensor.dim() else ((1,), (1,))
    made: list[int] = []  # from the last dimension on
    left = list(shape)
    base, run, taken = strides[-1], 1, 1
    for dim in reversed(range(len(sizes))):
        run *= sizes[dim]
        if dim and (sizes[dim - 1] == 1 or strides[dim - 1] == run * base):
            continue
        while left and (taken < run or left[-1] == 1):
            made.append(taken * base)
            taken *= left.pop()
        if taken != run:
            return None
        base, run, taken = strides[dim - 1], 1, 1
    return None if left else tuple(reversed(made))
