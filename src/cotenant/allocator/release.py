"""Giving cached memory back to the driver: on request, before a retry, or because it grew old.

Source of the whole module: `release_blocks`, `release_available_cached_blocks` and `garbage_collect_cached_blocks` in
`c10/cuda/CUDACachingAllocator.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterable

from cotenant.allocator.blocks import Block, FreeBlocks
from cotenant.allocator.driver import Driver


def release_unsplit(home: FreeBlocks, driver: Driver) -> None:
    """Give back every segment that is one free block."""
    for block in home.in_order():
        if not block.is_split:
            _release(home, block, driver)


def release_oversize(home: FreeBlocks, size: int, max_split_bytes: int, driver: Driver) -> bool:
    """Give back just enough unsplittable blocks for a request of `size`; True if that many were found.

    One block that is large enough, or the largest ones until their sum is. Found too few, they are gone all the same.
    """
    oversize = [block for block in home.in_order() if block.size >= max_split_bytes and not block.is_split]
    large_enough = next((block for block in oversize if block.size >= size), None)
    if large_enough is not None:
        _release(home, large_enough, driver)
        return True
    released = 0
    for block in reversed(oversize):
        if released >= size:
            break
        released += block.size
        _release(home, block, driver)
    return released >= size


def collect_garbage(homes: Iterable[FreeBlocks], searches: int, wanted_bytes: int, driver: Driver) -> None:
    """Give back whole segments older than the average, until `wanted_bytes` are freed or none is left.

    Age counts searches of the large pool since the block was cached (`searches` now).
    """
    candidates = [(home, block) for home in homes for block in home.in_order() if not block.is_split]
    ages = sum(searches - block.born for _, block in candidates)
    freed, progress = 0, True
    while candidates and progress and freed < wanted_bytes:
        oldest, progress = ages / len(candidates), False
        for home, block in list(candidates):
            age = searches - block.born
            if age >= oldest:
                progress = True
                freed += block.size
                ages -= age
                candidates.remove((home, block))
                _release(home, block, driver)


def _release(home: FreeBlocks, block: Block, driver: Driver) -> None:
    home.remove(block)
    driver.give_back(block.size)
    driver.segments -= 1
