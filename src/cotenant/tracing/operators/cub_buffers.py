"""Temporary storage of CUB's sorts and scans, which ATen's CUDA kernels take from the caching allocator.

Sizes were read from a CUDA build of torch 2.13 on a null GPU (decision 0053). They are those of compute capability 8.0:
others have tiles of other sizes, which changes them by less than 1 %.
"""

from __future__ import annotations

SORT_TILE, UNIQUE_TILE, SCAN_TILE = 3840, 1344, 896
"""Items for each thread block of a radix sort, of `unique_by_key` and of a prefix sum."""
_ALIGNMENT = 256
_RADIX_BITS = 8
_TILE_STATE_BYTES = 16
_PADDING_TILES = 32
_MAX_ONE_BLOCK = 2048
"""Up to so many items one block sorts, without storage; between 500 and 3,072 items this was not seen."""


def radix_sort_bytes(items: int, item_bytes: int, *, key_bits: int) -> int:
    """Temporary storage of CUB's radix sort of pairs: a second buffer for both, histograms, and counts of the tiles.

    Source: cub/device/dispatch/dispatch_radix_sort.cuh, `InvokeOnesweep`.
    """
    if items <= _MAX_ONE_BLOCK:
        return 1
    passes = -(-key_bits // _RADIX_BITS)
    bins = 1 << _RADIX_BITS
    second = 2 * _aligned(items * item_bytes) if passes > 1 else 0
    return second + passes * bins * 8 + -(-items // SORT_TILE) * bins * 4 + 2 * _ALIGNMENT - 1


def scan_bytes(items: int, tile: int) -> int:
    """Temporary storage of a prefix sum or a selection by CUB: a state for each tile of items.

    Source: cub/agent/single_pass_scan_operators.cuh, `ScanTileState::AllocationSize`.
    """
    tiles = -(-items // tile) + _PADDING_TILES
    return _aligned(tiles * _TILE_STATE_BYTES) + 2 * _ALIGNMENT - 1


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
