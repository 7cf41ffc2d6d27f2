"""Blocks, and the sets of free blocks in which the allocator looks for the best fit."""

from __future__ import annotations

from bisect import bisect_left, insort

from cotenant.allocator.versions import MIN_BLOCK_BYTES, SMALL_REQUEST_BYTES

LIVE, FREE, PENDING, UNMAPPED = range(4)
"""States of a block: handed out; cached; freed but in use by another stream; address space without memory."""

ADDRESS_BITS = 56
NO_LIMIT = 1 << 64


class Block:
    """A piece of a segment. `prev` and `next` are its neighbors in the segment, whatever their state."""

    __slots__ = ("address", "gc_base", "next", "pool", "prev", "requested", "size", "state")

    def __init__(self, address: int, size: int, pool: BlockPool, prev: Block | None, next_: Block | None) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.prev = prev
        self.next = next_
        self.state = FREE
        self.requested = 0
        self.gc_base = 0

    @property
    def is_split(self) -> bool:
        """It shares its segment with other blocks."""
        return self.prev is not None or self.next is not None


class BlockPool:
    """Cached blocks of one stream in one pool, ordered by size, then address; one `BlockPool` of torch per stream.

    A key is `size << ADDRESS_BITS | address`: one comparison of integers orders blocks as torch's comparator does.

    Attributes:
        min_remainder_bytes: a block is split if what remains has at least this many bytes.
        split_below: and if the request is below this.
        unmapped: address space of expandable segments that no memory backs, ordered by address.
        searches: how often a block was looked for; counted only while garbage is collected.
    """

    __slots__ = (
        "blocks",
        "keys",
        "min_remainder_bytes",
        "page_bytes",
        "searches",
        "small",
        "split_below",
        "stream",
        "unmapped",
    )

    def __init__(self, *, stream: int, small: bool, split_below: int, expandable: bool, page_bytes: int) -> None:
        self.stream = stream
        self.small = small
        self.keys: list[int] = []
        self.blocks: dict[int, Block] = {}
        self.unmapped: list[Block] = []
        self.page_bytes = page_bytes
        splits_freely = small or expandable
        self.min_remainder_bytes = MIN_BLOCK_BYTES if splits_freely else SMALL_REQUEST_BYTES + MIN_BLOCK_BYTES
        self.split_below = NO_LIMIT if splits_freely else split_below
        self.searches = 0

    def add(self, block: Block) -> None:
        """Cache `block`."""
        key = block.size << ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def remove(self, block: Block) -> None:
        """Take `block` out; it must be in."""
        key = block.size << ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def by_size(self) -> list[Block]:
        """Cached blocks, smallest first; a copy, so that blocks may be removed meanwhile."""
        return [self.blocks[key] for key in self.keys]
