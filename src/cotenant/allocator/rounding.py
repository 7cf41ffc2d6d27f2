"""Sizes of blocks and segments for a request.

A module of its own: these are the only numbers that torch computes without state, and they are tested as tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.allocator.versions import (
    LARGE_SEGMENT_BYTES,
    MIN_BLOCK_BYTES,
    MIN_OWN_SEGMENT_BYTES,
    ROUND_LARGE_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
)

_FIRST_INTERVAL_BITS = 21
"""Bit length of 1 MiB, where the first interval of `roundup_power2_divisions` begins."""


def block_bytes(request_bytes: int, divisions: Sequence[int] = ()) -> int:
    """Size of the block for a request: a multiple of 512 B, at least 512 B.

    `divisions` as in `AllocatorOptions.roundup_power2_divisions`.

    Source: `round_size` and `roundup_power2_next_division` in `c10/cuda/CUDACachingAllocator.cpp`,
    `roundup_power2_divisions` in `c10/core/AllocatorConfig.cpp`.
    """
    if divisions:
        interval = max(0, min(request_bytes.bit_length() - _FIRST_INTERVAL_BITS, len(divisions) - 1))
        count = divisions[interval]
        if count > 1 and request_bytes > MIN_BLOCK_BYTES * count:
            # `roundup_power2_next_division`: steps of the power of 2 at or below the request.
            step = (1 << (request_bytes.bit_length() - 1)) // count
            return -(-request_bytes // step) * step
    return max(1, -(-request_bytes // MIN_BLOCK_BYTES)) * MIN_BLOCK_BYTES


def segment_bytes(size_bytes: int, large_segment_bytes: int = LARGE_SEGMENT_BYTES) -> int:
    """Bytes requested from the driver when no cached block fits one of `size_bytes`.

    Source: `get_allocation_size` in `c10/cuda/CUDACachingAllocator.cpp`.
    Not modeled here: expandable segments, which map pages instead.
    """
    if size_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < MIN_OWN_SEGMENT_BYTES:
        return large_segment_bytes
    return -(-size_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES
