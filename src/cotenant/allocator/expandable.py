"""Expandable segments: one address range per stream and pool, into which memory is mapped page by page.

Source of the whole module: `ExpandableSegment`, `find_expandable_block`, `map_block`, `try_allocate_expandable_block`,
`unmap_block` and `release_blocks` in `c10/cuda/CUDACachingAllocator.cpp`.
"""

from __future__ import annotations

from bisect import insort

from cotenant.allocator.blocks import FREE, UNMAPPED, Block, BlockPool
from cotenant.allocator.driver import MemoryDriver


def best_fit(pool: BlockPool, at: int) -> int:
    """Index of the block to use, given that of the smallest that fits.

    A block followed by unmapped pages counts with the size it can grow to, so that small requests do not take it.
    """
    keys, blocks = pool.keys, pool.blocks
    while at + 1 < len(keys) and _growable_bytes(blocks[keys[at + 1]]) < _growable_bytes(blocks[keys[at]]):
        at += 1
    return at


def grow(pool: BlockPool, size: int, driver: MemoryDriver, space_bytes: int) -> Block | None:
    """Map pages for a block of at least `size`, and remove it from `pool`; None: out of memory.

    Pages that were mapped before the driver refused stay cached. `space_bytes`: address space of a new segment.
    """
    block = _find_address_range(pool, size) or _new_segment(pool, driver, max(space_bytes, size))
    # `try_allocate_expandable_block` maps the first block, then each unmapped neighbor, until the request fits.
    if block.state == UNMAPPED and not _map(pool, block, min(block.size, size), driver):
        return None
    while block.size < size:
        # `block` is free and its neighbor unmapped (see `_find_address_range`): mapping merges both.
        above = block.next
        if above is None or not _map(pool, above, min(size - block.size, above.size), driver):
            return None
        block = above
    pool.remove(block)
    return block


def unmap_free_pages(pool: BlockPool, driver: MemoryDriver) -> None:
    """Release every page that holds only free memory."""
    for block in pool.by_size():
        _unmap(pool, block, driver)
        if block.state == UNMAPPED and not block.is_split:
            pool.unmapped.remove(block)


def _growable_bytes(block: Block) -> int:
    above = block.next
    return block.size + (above.size if above is not None and above.state == UNMAPPED else 0)


def _find_address_range(pool: BlockPool, size: int) -> Block | None:
    """The lowest free or unmapped block that begins `size` bytes of unused addresses."""
    for unmapped in pool.unmapped:
        below = unmapped.prev
        start = below if below is not None and below.state in (FREE, UNMAPPED) else unmapped
        room, block = 0, start
        while room < size and block.state in (FREE, UNMAPPED):
            room += block.size
            if block.next is None:
                break
            block = block.next
        if room >= size:
            return start
    return None


def _new_segment(pool: BlockPool, driver: MemoryDriver, space_bytes: int) -> Block:
    # The address space is reserved at once, for 1 1/8 of the GPU's memory; only mapped pages take memory.
    pages = -(-space_bytes // pool.page_bytes)
    size = pages * pool.page_bytes
    block = Block(driver.address_space(size, pool.page_bytes), size, pool, None, None)
    block.state = UNMAPPED
    _add_unmapped(pool, block)
    return block


def _add_unmapped(pool: BlockPool, block: Block) -> None:
    insort(pool.unmapped, block, key=_address)


def _address(block: Block) -> int:
    return block.address


def _map(pool: BlockPool, block: Block, size: int, driver: MemoryDriver) -> bool:
    """Map whole pages for the first `size` bytes of an unmapped block, and cache them."""
    mapped = -(-size // pool.page_bytes) * pool.page_bytes
    if not driver.take(mapped):
        return False
    pool.unmapped.remove(block)
    if mapped < block.size:
        rest = Block(block.address + mapped, block.size - mapped, pool, block, block.next)
        rest.state = UNMAPPED
        _link(rest)
        _add_unmapped(pool, rest)
        block.size = mapped
    block.state = FREE
    _merge(pool, block)
    pool.add(block)
    return True


def _unmap(pool: BlockPool, block: Block, driver: MemoryDriver) -> None:
    """Release the whole pages of a free block; the remainders at both ends stay cached."""
    page = pool.page_bytes
    begin = -(-block.address // page) * page
    end = (block.address + block.size) // page * page
    if begin >= end:
        return
    pool.remove(block)
    before, after = begin - block.address, block.address + block.size - end
    if before:
        below = Block(block.address, before, pool, block.prev, block)
        _link(below)
        pool.add(below)
    if after:
        above = Block(end, after, pool, block, block.next)
        _link(above)
        pool.add(above)
    block.address, block.size, block.state = begin, end - begin, UNMAPPED
    _merge(pool, block)
    _add_unmapped(pool, block)
    driver.give_back(end - begin)


def _link(block: Block) -> None:
    """Make the neighbors of `block` point to it."""
    if block.prev is not None:
        block.prev.next = block
    if block.next is not None:
        block.next.prev = block


def _merge(pool: BlockPool, block: Block) -> None:
    """Merge `block` with the neighbors that are in its own state, free or unmapped."""
    below, above = block.prev, block.next
    if below is not None and below.state == block.state:
        _remove(pool, below)
        block.address, block.size, block.prev = below.address, block.size + below.size, below.prev
        _link(block)
    if above is not None and above.state == block.state:
        _remove(pool, above)
        block.size, block.next = block.size + above.size, above.next
        _link(block)


def _remove(pool: BlockPool, block: Block) -> None:
    if block.state == UNMAPPED:
        pool.unmapped.remove(block)
    else:
        pool.remove(block)
