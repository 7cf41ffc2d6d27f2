"""Buffers of a reduction whose results are shared by several thread blocks.

A sum over the rows of a matrix, such as the gradient of a bias, has few results of many elements each. PyTorch assigns
several thread blocks to each result, and allocates a buffer for their partial results. Its size is results x blocks x
threads in a row of the block, far more than is written: for float32 twice the matrix, until the blocks fill the GPU
(108 MiB on an A100; an eighth of the matrix where that is more).

Source: aten/src/ATen/native/cuda/Reduce.cuh, `setReduceConfig`, `global_memory_size`; the iteration's dimensions:
aten/src/ATen/TensorIterator.cpp, `reorder_dimensions`, `coalesce_dimensions`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from cotenant.core.trace import LibraryCall

_MAX_THREADS = 512
_MAX_THREADS_COMPLEX = 256
_WARP = 32
_VECTOR = 4
_MIN_VALUES = 16
_MAX_VALUES = 256
_THREADS_OF_SM = {(7, 5): 1024, (8, 6): 1536, (8, 7): 1536, (8, 9): 1536, (12, 0): 1536, (12, 1): 1536}
_USUAL_THREADS_OF_SM = 2048
_INDEX_LIMIT = 2**31 - 1
_COMPLEX_DOUBLE_BYTES = 16
_COUNTER_BYTES = 4


def threads_of_sm(capability: tuple[int, int]) -> int:
    """Resident threads of a multiprocessor. Source: CUDA C++ Programming Guide, table "Technical Specifications"."""
    return _THREADS_OF_SM.get(capability, _USUAL_THREADS_OF_SM)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionRule:
    """The buffers on one GPU.

    Attributes:
        sm_count: multiprocessors that torch sees; on a MIG instance, those of the instance.
        sm_threads: resident threads of each.
    """

    sm_count: int
    sm_threads: int

    def __call__(self, op: LibraryCall) -> tuple[int, ...]:
        """Bytes of the buffers of one call: partial results and semaphores; () if it needs none.

        `op.params`: `shape`, `strides` and `offset` (elements), `dims` that are reduced, `item_bytes` of an element,
        `sum_bytes` of the accumulator of a thread.
        """
        shape, strides, dims = (cast("Sequence[int]", op.params[name]) for name in ("shape", "strides", "dims"))
        # A view may begin anywhere; the kernel loads vectors only from aligned addresses
        # (`input_vectorized_thread_reduce_impl` of aten/src/ATen/native/cuda/Reduce.cuh).
        offset, item_bytes, sum_bytes = (cast("int", op.params[name]) for name in ("offset", "item_bytes", "sum_bytes"))
        grid = _Grid(_iteration(shape, strides, dims), offset, item_bytes)
        blocks = self._blocks_of_result(grid)
        return (sum_bytes * grid.partials * blocks, _COUNTER_BYTES * grid.width) if blocks > 1 else ()

    def _blocks_of_result(self, grid: _Grid) -> int:
        """How many blocks share a result: enough to fill the GPU, with at least 16 elements for each thread."""
        wanted = self.sm_count * (self.sm_threads // grid.threads)
        if grid.values < _MAX_VALUES or grid.width > wanted:
            return 1
        # `ctas_per_output1`, 2 and 3: fill the GPU, at least 16 values for a thread, at most 256.
        fill = -(-wanted // grid.width)
        return max(min(fill, -(-grid.values // _MIN_VALUES)), -(-grid.values // _MAX_VALUES))


@dataclass(slots=True)
class _Dim:
    size: int
    stride: int
    out_stride: int

    @property
    def is_reduced(self) -> bool:
        return self.out_stride == 0


class _Grid:
    """The grid of a reduction with many elements for each result.

    Not modeled: reductions with few elements, which share no result; there each warp has results of its own, and
    elements of a row are loaded together.

    Attributes:
        threads: of a block.
        width: blocks side by side, for different results.
        values: elements of one result that a thread adds up, if a result has one block.
        partials: values of each result that a block writes, as the buffer is sized.
    """

    def __init__(self, dims: list[_Dim], offset: int, item_bytes: int) -> None:
        dims = _indexable(dims, item_bytes)
        reduced = [dim for dim in dims if dim.is_reduced]
        results = math.prod(dim.size for dim in dims if not dim.is_reduced)
        inputs = math.prod(dim.size for dim in reduced)
        count = len(reduced)
        rows = count == len(dims) or dims[0].stride < dims[count].stride
        vector = _output_vector(dims, count, offset) if not rows and dims[count].stride == 1 else 1
        limit = (_MAX_THREADS_COMPLEX if item_bytes == _COMPLEX_DOUBLE_BYTES else _MAX_THREADS) // vector
        width, height = _block(inputs, results, limit) if rows else _block(results // vector, inputs, limit)
        self.threads = width * height
        self.values = -(-inputs // (self.threads if rows else height))
        self.width = results if rows else -(-(results // vector) // width)
        self.partials = results if rows else results * width * vector


def _block(across: int, down: int, limit: int) -> tuple[int, int]:
    """(Width, height) of a block of threads. Source: `set_block_dimension`."""
    most_across, most_down = (_power_of_two(min(max(extent, 1), limit)) for extent in (across, down))
    width = min(most_across, _WARP)
    height = min(most_down, limit // width)
    return min(most_across, limit // height), height


def _power_of_two(number: int) -> int:
    """The largest power of two not above `number`."""
    return 1 << (number.bit_length() - 1)


def _output_vector(dims: Sequence[_Dim], first: int, offset: int) -> int:
    """Results that a thread loads as one vector, if all addresses are aligned. Source: `get_output_vec_size`."""
    vector = _VECTOR
    multiples = (offset, dims[first].size, *(dim.stride for i, dim in enumerate(dims) if i != first))
    for multiple in multiples:
        while multiple % vector:
            vector //= 2
    return vector


def _iteration(shape: Sequence[int], strides: Sequence[int], reduced: Sequence[int]) -> list[_Dim]:
    """Dimensions in the order of iteration: reduced ones first, by ascending stride; merged where possible."""
    outer = [i for i in range(len(shape)) if i not in reduced]
    out_strides = dict.fromkeys(reduced, 0)
    step = 1
    for i in reversed(outer):
        out_strides[i] = step
        step *= max(shape[i], 1)
    dims = [_Dim(shape[i], strides[i], out_strides[i]) for i in reversed(range(len(shape)))]
    for i in range(1, len(dims)):
        at = i
        for before in range(i - 1, -1, -1):
            order = _compare(dims[before], dims[at])
            if order > 0:
                dims[before], dims[at] = dims[at], dims[before]
                at = before
            elif order < 0:
                break
    return _merged(dims)


def _compare(one: _Dim, other: _Dim) -> int:
    """Whether `one` comes after (1) or before (-1) `other`; 0: either. Source: `should_swap`."""
    if one.is_reduced != other.is_reduced:
        return 1 if other.is_reduced else -1
    for mine, its in ((one.out_stride, other.out_stride), (one.stride, other.stride)):
        # A stride of 0 is a broadcast or a reduced dimension: `should_swap` leaves the choice to the next operand.
        if not mine or not its:
            continue
        if mine != its:
            return -1 if mine < its else 1
    return 0


def _merged(dims: list[_Dim]) -> list[_Dim]:
    merged = dims[:1]
    for dim in dims[1:]:
        last = merged[-1]
        follows = last.size * last.stride == dim.stride and last.size * last.out_stride == dim.out_stride
        if last.size == 1:
            merged[-1] = _Dim(dim.size, dim.stride, dim.out_stride)
        elif follows or dim.size == 1:
            last.size *= dim.size
        else:
            merged.append(dim)
    return merged


def _indexable(dims: list[_Dim], item_bytes: int) -> list[_Dim]:
    """The dimensions of one part of a reduction that is split because 32-bit indices do not reach all of it.

    Source: `with_32bit_indexing`, which halves the dimension that spans most bytes.
    """
    dims = [_Dim(dim.size, dim.stride, dim.out_stride) for dim in dims]
    while (
        math.prod(dim.size for dim in dims) > _INDEX_LIMIT
        or 1 + sum((dim.size - 1) * dim.stride * item_bytes for dim in dims) > _INDEX_LIMIT
    ):
        widest = max(dims, key=lambda dim: (dim.size - 1) * max(dim.stride, dim.out_stride))
        widest.size -= widest.size // 2
    return dims
