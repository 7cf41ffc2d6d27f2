"""Releases cached memory to the driver: on request, before a retry, or by age.

Source of the whole module: `release_blocks`, `release_available_cached_blocks` and `garbage_collect_cached_blocks` in
`c10/cuda/CUDACachingAllocator.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterable

from cotenant.allocator.blocks import Block, BlockPool
from cotenant.allocator.driver import MemoryDriver


def release_unsplit(pool: BlockPool, driver: MemoryDriver) -> None:
    """Release every segment that is one free block."""
    for block in pool.by_size():
        if not block.is_split:
            _release(pool, block, driver)


def release_oversize(pool: BlockPool, size: int, max_split_bytes: int, driver: MemoryDriver) -> bool:
    """Release just enough unsplittable blocks for a request of `size`; whether there were enough.

    One block that is large enough, or else the largest ones until their sum is, even if that is not reached.
    """
    oversize = [block for block in pool.by_size() if block.size >= max_split_bytes and not block.is_split]
    # `lower_bound` in `release_available_cached_blocks` finds one block; only without one are several released.
    large_enough = next((block for block in oversize if block.size >= size), None)
    if large_enough is not None:
        _release(pool, large_enough, driver)
        return True
    released = 0
    for block in reversed(oversize):
        if released >= size:
            break
        released += block.size
        _release(pool, block, driver)
    return released >= size


def collect_garbage(pools: Iterable[BlockPool], searches: int, wanted_bytes: int, driver: MemoryDriver) -> None:
    """Release whole segments older than the average, until `wanted_bytes` are free or no segment is left.

    The age of a block is the number of searches in the large pool since it was cached; `searches`: their number now.
    """
    candidates = [(pool, block) for pool in pools for block in pool.by_size() if not block.is_split]
    ages = sum(searches - block.gc_base for _, block in candidates)
    freed, progress = 0, True
    while candidates and progress and freed < wanted_bytes:
        oldest, progress = ages / len(candidates), False
        for pool, block in list(candidates):
            age = searches - block.gc_base
            # "At least the average": with equal ages all are released, and the loop ends.
            if age >= oldest:
                progress = True
                freed += block.size
                ages -= age
                candidates.remove((pool, block))
                _release(pool, block, driver)


def _release(pool: BlockPool, block: Block, driver: MemoryDriver) -> None:
    pool.remove(block)
    driver.give_back(block.size)
    driver.segments -= 1
