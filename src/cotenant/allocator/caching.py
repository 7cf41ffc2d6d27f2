"""PyTorch's native CUDA caching allocator, simulated: the same blocks and segments without a GPU."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from cotenant.allocator import expandable, release
from cotenant.allocator.blocks import (
    ADDRESS_BITS,
    FREE,
    LIVE,
    NO_LIMIT,
    PENDING,
    UNMAPPED,
    Block,
    BlockPool,
)
from cotenant.allocator.driver import MemoryDriver
from cotenant.allocator.errors import OutOfMemory
from cotenant.allocator.options import AllocatorOptions
from cotenant.allocator.rounding import block_bytes, segment_bytes
from cotenant.allocator.snapshot import AllocatorStats, SegmentInfo, describe_segment
from cotenant.allocator.versions import MIN_BLOCK_BYTES, SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES, AllocatorRules
from cotenant.core.errors import UsageError

_BLOCK_MASK = MIN_BLOCK_BYTES - 1
_DEFAULT_ADDRESS_SPACE_BYTES = 1 << 44
"""Address space of an expandable segment on a GPU of unknown size."""


class CachingAllocator:
    """Serves `malloc` and `free` of one process on one GPU.

    Source: `DeviceCachingAllocator` in `c10/cuda/CUDACachingAllocator.cpp`.
    Not modeled: the release of private pools (CUDA graphs, `torch.cuda.MemPool`), callbacks that free memory, settings
    that change during the run.

    Attributes:
        allocated_bytes, requested_bytes: see `AllocatorStats`; plain attributes, because a replay reads them after
            every event.
        driver: counts the reserved bytes.
    """

    def __init__(
        self,
        options: AllocatorOptions,
        rules: AllocatorRules,
        capacity_bytes: int | None = None,
        *,
        total_bytes: int | None = None,
        driver: MemoryDriver | None = None,
    ) -> None:
        """`capacity_bytes`: the driver's maximum for this process; None: unlimited.

        `total_bytes`: the GPU's memory as torch reports it, to which a memory fraction applies; None: the capacity.
        `driver`: replaces a new one of that capacity.

        Raises:
            UsageError: the options set a memory fraction, and neither size is known.
        """
        self.options = options
        self.rules = rules
        self.driver = MemoryDriver(capacity_bytes) if driver is None else driver
        self.total_bytes = capacity_bytes if total_bytes is None else total_bytes
        self.allocated_bytes = 0
        self.peak_allocated_bytes = 0
        self.requested_bytes = 0
        self.peak_requested_bytes = 0
        self.retries = 0
        self.ooms = 0
        self._live: dict[int, Block] = {}
        self._pending: dict[int, Block] = {}
        self._pending_bytes = 0
        self._peak_pending_active_bytes = 0
        self._small: dict[int, BlockPool] = {}
        self._large: dict[int, BlockPool] = {}
        self._divisions = options.roundup_power2_divisions
        self._max_split_bytes = NO_LIMIT if options.max_split_bytes is None else options.max_split_bytes
        self._searches = 0
        self._allowed_bytes: int | None = None
        self._collects = False
        self._takes_smallest_fit = not options.expandable_segments and options.max_split_bytes is None
        if options.per_process_memory_fraction < 1:
            self.set_memory_fraction(options.per_process_memory_fraction)

    def malloc(self, request_bytes: int, stream: int = 0) -> int:
        """Allocate `request_bytes` on `stream`; returns the address of the block, and 0 for 0 bytes.

        Raises:
            OutOfMemory: the capacity or the memory fraction is exceeded.
        """
        if request_bytes <= 0:
            if request_bytes < 0:
                raise ValueError(f"`request_bytes` must be >= 0, got {request_bytes}")
            return 0
        size = (
            block_bytes(request_bytes, self._divisions)
            if self._divisions
            else (request_bytes + _BLOCK_MASK) & ~_BLOCK_MASK
        )
        # `get_pool`: a request of up to 1 MiB never shares a segment with a larger one.
        pools = self._small if size <= SMALL_REQUEST_BYTES else self._large
        pool = pools.get(stream)
        if pool is None:
            pool = pools[stream] = self._new_pool(stream, small=pools is self._small)
        keys = pool.keys
        # `BlockComparatorSize`: by size, then by address; so the best fit with the lowest address.
        at = bisect_left(keys, size << ADDRESS_BITS)
        if not self._takes_smallest_fit:
            at = self._find_free_block(pool, size, at)
        block = pool.blocks.pop(keys.pop(at)) if at < len(keys) else self._grow(pool, size)
        # `should_split`: a rest of 512 B or more in small and expandable pools, of more than 1 MiB in large ones.
        rest_bytes = block.size - size
        if rest_bytes >= pool.min_remainder_bytes and size < pool.split_below:
            above = block.next
            rest = Block(block.address + size, rest_bytes, pool, block, above)
            if above is not None:
                above.prev = rest
            block.next = rest
            block.size = size
            rest.gc_base = self._searches
            key = rest_bytes << ADDRESS_BITS | rest.address
            insort(keys, key)
            pool.blocks[key] = rest
        block.state = LIVE
        block.requested = request_bytes
        self._live[block.address] = block
        self.allocated_bytes = allocated = self.allocated_bytes + block.size
        if allocated > self.peak_allocated_bytes:  # noqa: PLR1730 - calls of `max` are a tenth of a replay
            self.peak_allocated_bytes = allocated
        self.requested_bytes = requested = self.requested_bytes + request_bytes
        if requested > self.peak_requested_bytes:  # noqa: PLR1730
            self.peak_requested_bytes = requested
        if self._pending_bytes:
            self._peak_pending_active_bytes = max(self._peak_pending_active_bytes, allocated + self._pending_bytes)
        return block.address

    def free(self, address: int, *, in_use_elsewhere: bool = False) -> None:
        """Free the block at `address`; 0 is ignored.

        `in_use_elsewhere`: another stream uses it (`Tensor.record_stream`); the block stays active until
        `finish_streams`, `empty_cache` or a retry synchronizes with that stream.

        Raises:
            ValueError: no live block has this address.
        """
        if not address:
            return
        block = self._live.pop(address, None)
        if block is None:
            raise ValueError(f"cannot free {address:#x}: no block is live there")
        self.allocated_bytes -= block.size
        if in_use_elsewhere:
            block.state = PENDING
            self._pending[address] = block
            self._pending_bytes += block.size
        else:
            self._cache(block)

    def _cache(self, block: Block) -> None:
        """Add a block to its pool, merged with its free neighbors."""
        # In `free_block`, not in `free`: torch counts requested bytes until other streams are done with the block
        # (c10/cuda/CUDACachingAllocator.cpp).
        self.requested_bytes -= block.requested
        block.requested = 0
        pool = block.pool
        keys = pool.keys
        blocks = pool.blocks
        below = block.prev
        if below is not None and below.state == FREE:
            key = below.size << ADDRESS_BITS | below.address
            del keys[bisect_left(keys, key)], blocks[key]
            block.address = below.address
            block.size += below.size
            block.prev = below = below.prev
            if below is not None:
                below.next = block
        above = block.next
        if above is not None and above.state == FREE:
            key = above.size << ADDRESS_BITS | above.address
            del keys[bisect_left(keys, key)], blocks[key]
            block.size += above.size
            block.next = above = above.next
            if above is not None:
                above.prev = block
        block.state = FREE
        block.gc_base = self._searches
        key = block.size << ADDRESS_BITS | block.address
        insort(keys, key)
        blocks[key] = block

    def finish_streams(self) -> None:
        """Synchronize with other streams: blocks that were freed while in use there become free."""
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        for block in pending.values():
            self._cache(block)

    def empty_cache(self) -> None:
        """Release all cached memory that shares no segment with a block in use (`torch.cuda.empty_cache`).

        A negative stream is the private pool of a CUDA graph, which is not released.
        """
        self.finish_streams()
        give_back = expandable.unmap_free_pages if self.options.expandable_segments else release.release_unsplit
        for pools in (self._large, self._small):
            for pool in pools.values():
                if pool.stream >= 0:
                    give_back(pool, self.driver)

    def set_memory_fraction(self, fraction: float) -> None:
        """Limit the reserved memory to a fraction of the GPU's (`torch.cuda.set_per_process_memory_fraction`).

        Raises:
            UsageError: the fraction is not in 0..1, or the GPU's memory is not known.
        """
        if not 0 <= fraction <= 1:
            raise UsageError(f"the memory fraction must be in 0..1, got {fraction}")
        if fraction == 1 and self.rules.full_fraction_is_no_limit:
            self._allowed_bytes = None
        elif self.total_bytes is None:
            raise UsageError(
                f"a memory fraction of {fraction} needs the GPU's memory, which is not known",
                hint="name the GPU that the job runs on",
            )
        else:
            self._allowed_bytes = int(fraction * self.total_bytes)
        options = self.options
        self._collects = self._allowed_bytes is not None and options.garbage_collection_threshold > 0
        self._takes_smallest_fit = not (
            self._collects or options.expandable_segments or options.max_split_bytes is not None
        )

    @property
    def stats(self) -> AllocatorStats:
        """What `torch.cuda.memory_stats` would return now."""
        return AllocatorStats(
            allocated_bytes=self.allocated_bytes,
            peak_allocated_bytes=self.peak_allocated_bytes,
            requested_bytes=self.requested_bytes,
            peak_requested_bytes=self.peak_requested_bytes,
            active_bytes=self.allocated_bytes + self._pending_bytes,
            peak_active_bytes=max(self.peak_allocated_bytes, self._peak_pending_active_bytes),
            reserved_bytes=self.driver.reserved_bytes,
            peak_reserved_bytes=self.driver.peak_reserved_bytes,
            segments=self.driver.segments,
            retries=self.retries,
            ooms=self.ooms,
        )

    def segments(self) -> tuple[SegmentInfo, ...]:
        """Reserved memory by address, as `torch.cuda.memory_snapshot` would list it."""
        heads = [block for block in self._mapped() if block.prev is None or block.prev.state == UNMAPPED]
        heads.sort(key=lambda block: block.address)
        return tuple(describe_segment(head, is_expandable=self.options.expandable_segments) for head in heads)

    def free_blocks(self) -> tuple[tuple[int, ...], ...]:
        """Size and address of each cached block as one number, by pool."""
        return tuple(tuple(pool.keys) for pools in (self._small, self._large) for pool in pools.values())

    def _mapped(self) -> Iterator[Block]:
        yield from self._live.values()
        yield from self._pending.values()
        for pools in (self._small, self._large):
            for pool in pools.values():
                yield from pool.blocks.values()

    def _new_pool(self, stream: int, *, small: bool) -> BlockPool:
        return BlockPool(
            stream=stream,
            small=small,
            split_below=self._max_split_bytes,
            expandable=self.options.expandable_segments,
            page_bytes=SMALL_SEGMENT_BYTES if small else self.options.large_segment_bytes,
        )

    def _find_free_block(self, pool: BlockPool, size: int, at: int) -> int:
        """Index of the block to use, given that of the smallest that fits; the number of blocks if none may be used.

        Source: `get_free_block`.
        """
        none = len(pool.keys)
        # `get_free_blocks_call_count`, the clock of garbage collection, counts per pool; only large blocks are
        # collected.
        if self._collects and not pool.small:
            self._searches += 1
        if at == none:
            return none
        if self.options.expandable_segments:
            at = expandable.best_fit(pool, at)
        found, limit = pool.keys[at] >> ADDRESS_BITS, self._max_split_bytes
        # A block of `max_split_size_mb` or more is never split, so a smaller request would waste the rest of it ...
        if size < limit <= found:
            return none
        # ... and a request as large gets one only if the rest is below `max_non_split_rounding_mb`.
        if size >= limit and found >= size + self.options.max_non_split_rounding_bytes:
            return none
        return at

    def _grow(self, pool: BlockPool, size: int) -> Block:
        """A block of new memory, after a release of cached memory if the driver has none left. Source: `malloc`."""
        segment_size = segment_bytes(size, self.options.large_segment_bytes)
        if self._collects and self._allowed_bytes is not None:
            # `garbage_collect_cached_blocks` runs before every new segment, and skips expandable ones.
            threshold = int(self.options.garbage_collection_threshold * self._allowed_bytes)
            wanted = self.driver.reserved_bytes - threshold
            if not self.options.expandable_segments:
                ordinary = [pool for pool in self._large.values() if pool.stream >= 0]  # not of CUDA graphs
                release.collect_garbage(ordinary, self._searches, wanted, self.driver)
        block = self._allocate_segment(pool, size, segment_size)
        if block is None and not self._exceeds_fraction(segment_size):
            if self._max_split_bytes < NO_LIMIT and not self.options.expandable_segments:
                enough = release.release_oversize(pool, size, self._max_split_bytes, self.driver)
                block = self._allocate_segment(pool, size, segment_size) if enough else None
            if block is None:
                self.empty_cache()
                # `num_alloc_retries` counts the attempt after `release_cached_blocks`, whether it succeeds or not.
                self.retries += 1
                block = self._allocate_segment(pool, size, segment_size)
        if block is None:
            self.ooms += 1
            raise self._out_of_memory(segment_size)
        return block

    def _allocate_segment(self, pool: BlockPool, size: int, segment_size: int) -> Block | None:
        """A block of a new segment; None if it is refused. Source: `alloc_block`.

        The memory fraction is checked for a whole segment, even where an expandable one would map less.
        """
        if self._allowed_bytes is not None and self.driver.reserved_bytes + segment_size > self._allowed_bytes:
            return None
        if self._exceeds_fraction(segment_size):
            return None
        if self.options.expandable_segments:
            total = self.total_bytes
            space_bytes = _DEFAULT_ADDRESS_SPACE_BYTES if total is None else total + total // 8
            return expandable.grow(pool, size, self.driver, space_bytes)
        if not self.driver.take(segment_size):
            return None
        self.driver.segments += 1
        return Block(self.driver.address_space(segment_size), segment_size, pool, None, None)

    def _exceeds_fraction(self, segment_size: int) -> bool:
        """Whether `throw_on_cudamalloc_oom` refuses the segment, without a retry."""
        if not self.options.throw_on_cudamalloc_oom or self._allowed_bytes is not None or self.total_bytes is None:
            return False
        limit = int(self.options.per_process_memory_fraction * self.total_bytes)
        return self.driver.reserved_bytes + segment_size > limit

    def _out_of_memory(self, segment_size: int) -> OutOfMemory:
        driver = self.driver
        free = None if driver.capacity_bytes is None else driver.capacity_bytes - driver.reserved_bytes
        return OutOfMemory(
            tried_bytes=segment_size,
            free_bytes=free,
            total_bytes=self.total_bytes,
            allowed_bytes=self._allowed_bytes,
            allocated_bytes=self.allocated_bytes,
            reserved_bytes=driver.reserved_bytes,
        )
