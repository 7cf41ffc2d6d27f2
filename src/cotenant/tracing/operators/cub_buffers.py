"""Temporary storage of CUB's sorts and scans, which ATen's CUDA kernels take from the caching allocator.

Sizes were read from a CUDA build of torch 2.13 on a null GPU (decision 0053). They are those of compute capability 8.0:
others have tiles of other sizes, which changes them by less than 1 %.

A module of its own: measured numbers, tested as a table.
"""

from __future__ import annotations

UNIQUE_TILE, SCAN_TILE = 1344, 896
"""Items for each thread block of `unique_by_key` and of a prefix sum."""
_SORT_TILES = {4: 3072, 8: 3840}
"""Items for each thread block of a radix sort, by the bytes of a key."""
_SHORT_KEY_BYTES = 4_468_991
"""Counts of a radix sort of keys below 4 bytes, which has another kernel: the same for 30,000 and 3 million items."""
_ALIGNMENT = 256
_RADIX_BITS = 8
_TILE_STATE_BYTES = 16
_PADDING_TILES = 32
_MAX_ONE_BLOCK = 2048
"""Up to so many items one block sorts, without storage; between 500 and 3,072 items this was not seen."""


def radix_sort_bytes(items: int, key_bytes: int, *, key_bits: int, value_bytes: int | None = None) -> int:
    """Temporary storage of CUB's radix sort of pairs: a second buffer for both, histograms, and counts of the tiles.

    `value_bytes`: of what is sorted by the keys; by default as those, 0 for keys alone.

    Source: cub/device/dispatch/dispatch_radix_sort.cuh, `InvokeOnesweep`.
    """
    if items <= _MAX_ONE_BLOCK:
        return 1
    passes = -(-key_bits // _RADIX_BITS)
    bins = 1 << _RADIX_BITS
    second = (
        _aligned(items * key_bytes) + _aligned(items * (key_bytes if value_bytes is None else value_bytes))
        if passes > 1
        else 0
    )
    if key_bytes not in _SORT_TILES:
        return second + _SHORT_KEY_BYTES
    return second + passes * bins * 8 + -(-items // _SORT_TILES[key_bytes]) * bins * 4 + 2 * _ALIGNMENT - 1


def segmented_sort_bytes(items: int, key_bytes: int, value_bytes: int) -> int:
    """Temporary storage of CUB's segmented radix sort: a second buffer for keys and values.

    Source: cub/device/dispatch/dispatch_radix_sort.cuh, `DispatchSegmentedRadixSort`.
    """
    return _aligned(items * key_bytes) + _aligned(items * value_bytes) + _ALIGNMENT - 1


def scan_bytes(items: int, tile: int) -> int:
    """Temporary storage of a prefix sum or a selection by CUB: a state for each tile of items.

    Source: cub/agent/single_pass_scan_operators.cuh, `ScanTileState::AllocationSize`.
    """
    tiles = -(-items // tile) + _PADDING_TILES
    return _aligned(tiles * _TILE_STATE_BYTES) + 2 * _ALIGNMENT - 1


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
