"""Blocks, and pools of free blocks ordered for best fit."""

from __future__ import annotations

from bisect import bisect_left, insort

from cotenant.allocator.versions import MIN_BLOCK_BYTES, SMALL_REQUEST_BYTES

LIVE, FREE, PENDING, UNMAPPED = range(4)
"""States of a block: allocated; cached; freed but in use by another stream; address space without memory."""

ADDRESS_BITS = 56
NO_LIMIT = 1 << 64


class Block:
    """A range of a segment; `prev` and `next` are its neighbors there, whatever their state.

    `gc_base`: count of searches when it was cached; torch's `gc_count_base`.
    """

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
        """Whether its segment has other blocks."""
        return self.prev is not None or self.next is not None


class BlockPool:
    """Cached blocks of one stream and size class, by size, then address. Torch has one `BlockPool` for all streams.

    A key is `size << ADDRESS_BITS | address`: one comparison of integers orders blocks as torch's comparator does.

    Attributes:
        min_remainder_bytes: a block is split only if the remainder has this many bytes.
        split_below: and only for a request below this.
        unmapped: address space of expandable segments without memory, by address.
    """

    __slots__ = (
        "blocks",
        "keys",
        "min_remainder_bytes",
        "page_bytes",
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

    def add(self, block: Block) -> None:
        """Add a free block."""
        key = block.size << ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def remove(self, block: Block) -> None:
        """Remove a block of the pool."""
        key = block.size << ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]

    def by_size(self) -> list[Block]:
        """Cached blocks, smallest first; a copy, so that the caller may remove blocks."""
        return [self.blocks[key] for key in self.keys]
