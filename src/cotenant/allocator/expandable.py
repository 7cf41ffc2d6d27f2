"""Expandable segments: one range of addresses per stream and pool, backed by memory page by page.

Source of the whole module: `ExpandableSegment`, `find_expandable_block`, `map_block`, `try_allocate_expandable_block`,
`unmap_block` and `release_blocks` in `c10/cuda/CUDACachingAllocator.cpp`.
"""

from __future__ import annotations

from bisect import insort

from cotenant.allocator.blocks import FREE, UNMAPPED, Block, FreeBlocks
from cotenant.allocator.driver import Driver


def best_fit(home: FreeBlocks, at: int) -> int:
    """Index of the block to use, given that of the smallest one that fits.

    A block that can still grow counts with the size it can grow to, so that small requests leave it alone.
    """
    keys, blocks = home.keys, home.blocks
    while at + 1 < len(keys) and _reach(blocks[keys[at + 1]]) < _reach(blocks[keys[at]]):
        at += 1
    return at


def grow(home: FreeBlocks, size: int, driver: Driver, space_bytes: int) -> Block | None:
    """A free block of at least `size`, taken out of `home`, for which pages were mapped; None: out of memory.

    Pages mapped before the driver refused stay, as cached memory. `space_bytes`: addresses of a new segment.
    """
    block = _lowest_room(home, size) or _new_segment(home, driver, max(space_bytes, size))
    if block.state == UNMAPPED and not _map(home, block, min(block.size, size), driver):
        return None
    while block.size < size:
        # `block` is free and its neighbor unmapped, or there would be no room: mapping merges both.
        above = block.next
        if above is None or not _map(home, above, min(size - block.size, above.size), driver):
            return None
        block = above
    home.remove(block)
    return block


def unmap_free_pages(home: FreeBlocks, driver: Driver) -> None:
    """Give back every page that holds nothing but free memory."""
    for block in home.in_order():
        _unmap(home, block, driver)
        if block.state == UNMAPPED and not block.is_split:
            home.unmapped.remove(block)


def _reach(block: Block) -> int:
    above = block.next
    return block.size + (above.size if above is not None and above.state == UNMAPPED else 0)


def _lowest_room(home: FreeBlocks, size: int) -> Block | None:
    """The lowest free or unmapped block from which `size` bytes of addresses are not in use."""
    for unmapped in home.unmapped:
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


def _new_segment(home: FreeBlocks, driver: Driver, space_bytes: int) -> Block:
    pages = -(-space_bytes // home.page_bytes)
    size = pages * home.page_bytes
    block = Block(driver.address_space(size, home.page_bytes), size, home, None, None)
    block.state = UNMAPPED
    _add_unmapped(home, block)
    return block


def _add_unmapped(home: FreeBlocks, block: Block) -> None:
    insort(home.unmapped, block, key=_address)


def _address(block: Block) -> int:
    return block.address


def _map(home: FreeBlocks, block: Block, size: int, driver: Driver) -> bool:
    """Back the first `size` bytes of an unmapped block, in whole pages, and cache them."""
    mapped = -(-size // home.page_bytes) * home.page_bytes
    if not driver.take(mapped):
        return False
    home.unmapped.remove(block)
    if mapped < block.size:
        rest = Block(block.address + mapped, block.size - mapped, home, block, block.next)
        rest.state = UNMAPPED
        _link(rest)
        _add_unmapped(home, rest)
        block.size = mapped
    block.state = FREE
    _merge(home, block)
    home.add(block)
    return True


def _unmap(home: FreeBlocks, block: Block, driver: Driver) -> None:
    """Give back the whole pages of a free block; what is left of it at either end stays cached."""
    page = home.page_bytes
    begin = -(-block.address // page) * page
    end = (block.address + block.size) // page * page
    if begin >= end:
        return
    home.remove(block)
    before, after = begin - block.address, block.address + block.size - end
    if before:
        below = Block(block.address, before, home, block.prev, block)
        _link(below)
        home.add(below)
    if after:
        above = Block(end, after, home, block, block.next)
        _link(above)
        home.add(above)
    block.address, block.size, block.state = begin, end - begin, UNMAPPED
    _merge(home, block)
    _add_unmapped(home, block)
    driver.give_back(end - begin)


def _link(block: Block) -> None:
    """Make the neighbors of `block` point to it."""
    if block.prev is not None:
        block.prev.next = block
    if block.next is not None:
        block.next.prev = block


def _merge(home: FreeBlocks, block: Block) -> None:
    """Absorb the neighbors of `block` that are in its own state, free or unmapped."""
    below, above = block.prev, block.next
    if below is not None and below.state == block.state:
        _take_out(home, below)
        block.address, block.size, block.prev = below.address, block.size + below.size, below.prev
        _link(block)
    if above is not None and above.state == block.state:
        _take_out(home, above)
        block.size, block.next = block.size + above.size, above.next
        _link(block)


def _take_out(home: FreeBlocks, block: Block) -> None:
    if block.state == UNMAPPED:
        home.unmapped.remove(block)
    else:
        home.remove(block)
