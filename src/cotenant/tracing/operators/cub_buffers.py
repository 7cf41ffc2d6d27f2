"""Temporary storage of CUB's sorts and scans, which ATen's CUDA kernels take from the caching allocator.

Sizes were read from a CUDA build of torch 2.13 on a null GPU (decision 0053). Radix sorts are those of the capability;
the rest is that of 8.0, from which others differ by a few KiB.

A module of its own: measured numbers, tested as a table.
"""

from __future__ import annotations

UNIQUE_TILE, SCAN_TILE = 1344, 896
"""Items for each thread block of `unique_by_key` and of a prefix sum."""
_SORT_TILES = {
    (7, 5): {(4, True): 2816, (8, True): 2816, (4, False): 5888, (8, False): 2816},
    (8, 0): {(4, True): 3072, (8, True): 3840, (4, False): 8064, (8, False): 3840},
    (9, 0): {(4, True): 5376, (8, True): 4608, (4, False): 6912, (8, False): 5760},
}
"""Items for each thread block of a radix sort from a capability on, by the bytes of a key and whether it has a value.
Keys of 4 bytes alone are of float32; for int32 it is 7,296 on 9.0."""
_SCAN_TILES = {2: 3840, 4: 1920, 8: SCAN_TILE}
_SELECT_TILE = 2304
_INDEX_SCAN_TILE, _RUN_TILE = 3840, 384
"""Items for each thread block of a sum of int32 into int64, and of a run-length encoding."""
_THRUST_SCAN_TILE, _THRUST_UNIQUE_TILE, _THRUST_UNIQUE_BY_KEY_TILE, _THRUST_REDUCE_BY_KEY_TILE = 3136, 640, 2688, 2304
"""Of Thrust's algorithms on int64, which have other tuning; and of its sums of equal keys."""
_THRUST_COUNT_BYTES = 256
_MERGE_THREADS, _MERGE_ITEMS = 512, 17
_UNIQUE_TILES = {4: 4608, 8: 1920}
"""Items for each thread block of a scan of a row and of a search for neighbors that differ, by the bytes of an item."""
_REDUCE_BLOCKS = 108 * 8 * 5
"""Partial sums of a count over many items on the 108 SMs of an A100, which is taken for all GPUs."""
_MAX_ONE_COUNT = 4096
_SHORT_KEY_BYTES = 4_468_991
"""Counts of a radix sort of keys below 4 bytes, which has another kernel: the same for 30,000 and 3 million items."""
_ALIGNMENT = 256
_RADIX_BITS = 8
_TILE_STATE_BYTES = 16
_PADDING_TILES = 32
_MAX_ONE_BLOCK = 2048
"""Up to so many items one block sorts, without storage; between 500 and 3,072 items this was not seen."""


def radix_sort_bytes(
    items: int,
    key_bytes: int,
    *,
    key_bits: int,
    capability: tuple[int, int],
    value_bytes: int | None = None,
    alignment: int = _ALIGNMENT,
) -> int:
    """Temporary storage of CUB's radix sort of pairs: a second buffer for both, histograms, and counts of the tiles.

    `value_bytes`: of what is sorted by the keys; by default as those, 0 for keys alone. `alignment`: of the second
    buffers, 128 where Thrust sorts.

    Source: cub/device/dispatch/dispatch_radix_sort.cuh, `InvokeOnesweep`.
    """
    if items <= _MAX_ONE_BLOCK:
        return 1
    passes = -(-key_bits // _RADIX_BITS)
    bins = 1 << _RADIX_BITS
    second = (
        _aligned(items * key_bytes, alignment)
        + _aligned(items * (key_bytes if value_bytes is None else value_bytes), alignment)
        if passes > 1
        else 0
    )
    known = max((found for found in _SORT_TILES if found <= capability), default=min(_SORT_TILES))
    tile = _SORT_TILES[known].get((key_bytes, value_bytes != 0))
    if tile is None:
        return second + _SHORT_KEY_BYTES
    return second + passes * bins * 8 + -(-items // tile) * bins * 4 + 2 * _ALIGNMENT - 1


def segmented_sort_bytes(items: int, key_bytes: int, value_bytes: int) -> int:
    """Temporary storage of CUB's segmented radix sort: a second buffer for keys and values.

    Source: cub/device/dispatch/dispatch_radix_sort.cuh, `DispatchSegmentedRadixSort`.
    """
    return _aligned(items * key_bytes) + _aligned(items * value_bytes) + _ALIGNMENT - 1


def merge_sort_bytes(items: int, key_bytes: int, value_bytes: int = 0) -> int:
    """Temporary storage of CUB's merge sort: a second buffer for both, and where each tile begins.

    Source: cub/device/dispatch/dispatch_merge_sort.cuh, `DispatchMergeSort`.
    """
    tile = _MERGE_THREADS * min(_MERGE_ITEMS, _MERGE_ITEMS * 4 // key_bytes)
    starts = 8 * (-(-items // tile) + 1)
    return _aligned(items * key_bytes) + _aligned(items * value_bytes) + _aligned(starts) + _ALIGNMENT - 1


def scan_bytes(items: int, tile: int, *, state_bytes: int = _TILE_STATE_BYTES) -> int:
    """Temporary storage of a prefix sum or a selection by CUB: a state for each tile of items.

    A state holds a sum and a flag: 8 bytes for sums of 4, 16 for sums of 8.

    Source: cub/agent/single_pass_scan_operators.cuh, `ScanTileState::AllocationSize`.
    """
    tiles = -(-items // tile) + _PADDING_TILES
    return _aligned(tiles * state_bytes) + 2 * _ALIGNMENT - 1


def row_scan_bytes(items: int, item_bytes: int) -> int:
    """Temporary storage of a scan whose items have 2, 4 or 8 bytes; those of 2 have flags and two sums apart."""
    tile = _SCAN_TILES[item_bytes]
    if item_bytes > 2:
        return scan_bytes(items, tile, state_bytes=2 * item_bytes)
    tiles = -(-items // tile) + _PADDING_TILES
    return _aligned(4 * tiles) + 2 * _aligned(2 * tiles) + 2 * _ALIGNMENT - 1


def select_bytes(items: int) -> int:
    """Temporary storage of a selection of flagged items."""
    return scan_bytes(items, _SELECT_TILE, state_bytes=8)


def unique_bytes(items: int, item_bytes: int) -> int:
    """Temporary storage of a search for neighbors that differ; of items below 4 bytes, as of 4."""
    return scan_bytes(items, _UNIQUE_TILES[max(4, item_bytes)], state_bytes=8)


def index_scan_bytes(items: int) -> int:
    """Temporary storage of a sum of int32 into int64 (ATen/cuda/cub.cuh, `inclusive_sum_truncating`)."""
    return scan_bytes(items, _INDEX_SCAN_TILE, state_bytes=8)


def run_length_bytes(items: int) -> int:
    """Temporary storage of a run-length encoding, whatever the items."""
    return scan_bytes(items, _RUN_TILE, state_bytes=8)


def thrust_scan_bytes(items: int) -> int:
    """Temporary storage of Thrust's `inclusive_scan` of int64."""
    return scan_bytes(items, _THRUST_SCAN_TILE)


def thrust_unique_bytes(items: int, *, by_key: bool) -> int:
    """Temporary storage of Thrust's `unique` and `unique_by_key` of int64, with a count."""
    tile = _THRUST_UNIQUE_BY_KEY_TILE if by_key else _THRUST_UNIQUE_TILE
    return scan_bytes(items, tile) + _THRUST_COUNT_BYTES


def thrust_reduce_by_key_bytes(items: int) -> int:
    """Temporary storage of Thrust's `reduce_by_key`, with a count."""
    return scan_bytes(items, _THRUST_REDUCE_BY_KEY_TILE) + _THRUST_COUNT_BYTES


def count_bytes(items: int) -> int:
    """Temporary storage of a count: a number for each thread block. Source: dispatch_reduce.cuh, `InvokePasses`."""
    return 1 if items <= _MAX_ONE_COUNT else _aligned(4 * _REDUCE_BLOCKS) + _ALIGNMENT - 1


def _aligned(nbytes: int, alignment: int = _ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment
