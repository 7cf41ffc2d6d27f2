"""How often an iteration comes again until the allocator reserves no more."""

from __future__ import annotations

from collections.abc import Collection, Container, Sequence

from cotenant.allocator.caching import CachingAllocator
from cotenant.allocator.driver import MemoryDriver
from cotenant.allocator.errors import OutOfMemory
from cotenant.allocator.options import AllocatorOptions
from cotenant.allocator.replay import serve
from cotenant.allocator.versions import AllocatorRules
from cotenant.core.trace import MemoryEvent

MAX_REPEATS = 5
"""Of 83 jobs that were repeated 40 times, 2 first reserved more after the fifth; it raised one peak, by 2 MiB."""


def of_iteration_before(storage_id: int) -> int:
    """The number by which a repeated iteration frees what the one before allocated as `storage_id`."""
    return -2 - storage_id


def count_growing_repeats(
    before: Sequence[MemoryEvent],
    iteration: Sequence[MemoryEvent],
    carried: Collection[int],
    *,
    options: AllocatorOptions,
    rules: AllocatorRules,
    total_bytes: int | None = None,
    descending: bool = True,
    optional_storages: Container[int] = (),
) -> int:
    """The number of the last repeat of `iteration` that reserves more than was reserved before; 0: none does.

    `before`, `iteration`: events of GPU 0 alone, lowered. `carried`: storages that live at the end of either, and that
    the iteration frees as `of_iteration_before`. Memory is unlimited. Repeats end after `MAX_REPEATS`, and where the
    blocks lie as they did after an earlier one: what follows would be the same. Not part of the comparison is the age
    of blocks, which matters for `garbage_collection_threshold` alone.
    """
    driver = MemoryDriver(None, descending=descending and not rules.orders_by_age)
    allocator = CachingAllocator(options, rules, total_bytes=total_bytes, driver=driver)
    addresses: dict[int, int] = {}
    growing = 0
    states: set[object] = set()
    try:
        serve(allocator, before, addresses, optional_storages)
        for repeat in range(1, MAX_REPEATS + 1):
            state = allocator.free_blocks(), tuple(map(addresses.__getitem__, carried))
            if state in states:
                break
            states.add(state)
            for storage_id in carried:
                addresses[of_iteration_before(storage_id)] = addresses.pop(storage_id)
            reserved_bytes = driver.peak_reserved_bytes
            serve(allocator, iteration, addresses, optional_storages)
            if driver.peak_reserved_bytes > reserved_bytes:
                growing = repeat
    except OutOfMemory:  # with `throw_on_cudamalloc_oom`
        return 0
    return growing
