"""A replay with its full history: bytes by category after each event, and the segments of the allocator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from cotenant.allocator import CachingAllocator, OutOfMemory, SegmentInfo
from cotenant.allocator.driver import MemoryDriver
from cotenant.core.trace import CATEGORIES, MemoryEvent
from cotenant.estimators.replay_input import ReplayInput


class BlockEvent(NamedTuple):
    """A block allocated or freed, or memory requested from or returned to the driver.

    `action`: `alloc`, `free`, `oom`; `segment_alloc`, `segment_free`; `segment_map`, `segment_unmap` where segments
    are expandable. `size` is that of the block or segment. `event_index`: of the event that caused it.
    """

    action: str
    address: int
    size: int
    event_index: int


@dataclass(kw_only=True)
class AllocationHistory:
    """The history of one GPU, in the order of the events.

    Attributes:
        events: the replayed events of this GPU, up to the one that ran out of memory.
        blocks: what the events did; `phases`: (index of its first event, name) of each phase.
        category_bytes: allocated bytes after each event, by category; `reserved_bytes`: after each event.
        segments: segments held at the end; `addresses`: the event that allocated the live block at an address.
    """

    events: list[MemoryEvent] = field(default_factory=list)
    blocks: list[BlockEvent] = field(default_factory=list)
    phases: list[tuple[int, str]] = field(default_factory=list)
    category_bytes: dict[str, list[int]] = field(default_factory=dict)
    reserved_bytes: list[int] = field(default_factory=list)
    segments: tuple[SegmentInfo, ...] = ()
    addresses: dict[int, int] = field(default_factory=dict)

    @property
    def allocated_bytes(self) -> list[int]:
        """Allocated after each event."""
        return [sum(column) for column in zip(*self.category_bytes.values(), strict=True)]


def allocation_history(
    replay_input: ReplayInput, capacity_bytes: int | None = None, device: int = 0
) -> AllocationHistory:
    """Replay `replay_input` and record everything; `capacity_bytes` as of `ReplayInput.replay`."""
    return _RecordingAllocator(replay_input, capacity_bytes).run(device)


class _WatchedDriver(MemoryDriver):
    """A driver that records whether its mappings have changed."""

    __slots__ = ("changed",)

    def __init__(self, capacity_bytes: int | None, *, descending: bool) -> None:
        super().__init__(capacity_bytes, descending=descending)
        self.changed = False

    def take(self, size_bytes: int) -> bool:
        taken = super().take(size_bytes)
        self.changed = self.changed or taken
        return taken

    def give_back(self, size_bytes: int) -> None:
        super().give_back(size_bytes)
        self.changed = True


class _RecordingAllocator:
    """One replay. The allocator does not report its segments: they are compared after each call of the driver."""

    def __init__(self, replay_input: ReplayInput, capacity_bytes: int | None) -> None:
        self.replay_input = replay_input
        options = replay_input.stack.options
        self.allocator = CachingAllocator(
            options, replay_input.stack.rules, capacity_bytes, total_bytes=replay_input.gpu.usable_bytes
        )
        if capacity_bytes is None and options.per_process_memory_fraction < 1:
            self.allocator.set_memory_fraction(1.0)
        descending = replay_input.descending and not replay_input.stack.rules.orders_by_age
        self.driver = _WatchedDriver(capacity_bytes, descending=descending)
        self.allocator.driver = self.driver
        self.expandable = options.expandable_segments
        self.history = AllocationHistory(category_bytes={name: [] for name in CATEGORIES})
        self.now = dict.fromkeys(CATEGORIES, 0)
        self.live: dict[int, tuple[int, int, str]] = {}
        self.held: dict[int, int] = {}

    def run(self, device: int) -> AllocationHistory:
        history = self.history
        for event in self.replay_input.events:
            if event.device != device:
                continue
            index = len(history.events)
            history.events.append(event)
            if not history.phases or history.phases[-1][1] != event.phase:
                history.phases.append((index, event.phase))
            fitted = self.serve(index, event)
            for name, column in history.category_bytes.items():
                column.append(self.now[name])
            history.reserved_bytes.append(self.driver.reserved_bytes)
            if not fitted:
                break
        history.segments = self.allocator.segments()
        return history

    def serve(self, index: int, event: MemoryEvent) -> bool:
        """Replay one event; False if it ran out of memory."""
        if event.action == "alloc":
            return self.alloc(index, event)
        if event.action == "free":
            if event.storage_id not in self.live and event.storage_id in self.replay_input.optional_storages:
                return True
            address, size, category = self.live.pop(event.storage_id)
            self.allocator.free(address)
            self.now[category] -= size
            if size:
                self.history.blocks.append(BlockEvent("free", address, size, index))
                del self.history.addresses[address]
        elif event.action == "empty_cache":
            self.allocator.empty_cache()
            self.compare(index)
        return True

    def alloc(self, index: int, event: MemoryEvent) -> bool:
        before = self.allocator.allocated_bytes
        try:
            address = self.allocator.malloc(event.bytes, event.stream)
        except OutOfMemory:
            self.compare(index)
            if event.storage_id in self.replay_input.optional_storages:
                return True
            self.history.blocks.append(BlockEvent("oom", 0, event.bytes, index))
            return False
        size = self.allocator.allocated_bytes - before
        self.compare(index)
        self.live[event.storage_id] = (address, size, event.category)
        self.now[event.category] += size
        if size:
            self.history.blocks.append(BlockEvent("alloc", address, size, index))
            self.history.addresses[address] = index
        return True

    def compare(self, index: int) -> None:
        """Record the segments that were allocated and freed since the last call."""
        if not self.driver.changed:
            return
        self.driver.changed = False
        held = {segment.address: segment.size_bytes for segment in self.allocator.segments()}
        events = _differing_ranges(self.held, held) if self.expandable else _differing_segments(self.held, held)
        self.history.blocks += [BlockEvent(action, address, size, index) for action, address, size in events]
        self.held = held


def _differing_segments(before: dict[int, int], after: dict[int, int]) -> Iterator[tuple[str, int, int]]:
    for address, size in before.items():
        if address not in after:
            yield "segment_free", address, size
    for address, size in after.items():
        if address not in before:
            yield "segment_alloc", address, size


def _differing_ranges(before: dict[int, int], after: dict[int, int]) -> Iterator[tuple[str, int, int]]:
    """Mapped ranges grow, shrink, split and merge, so they are compared between all of their ends."""
    both = [*before.items(), *after.items()]
    ends = sorted({address for address, _ in both} | {address + size for address, size in both})
    events = []
    for start, end in itertools.pairwise(ends):
        was, held = _covers(before, start), _covers(after, start)
        if was != held:
            events.append(("segment_map" if held else "segment_unmap", start, end - start))
    yield from sorted(events, key=lambda difference: difference[0] == "segment_map")


def _covers(ranges: dict[int, int], address: int) -> bool:
    return any(start <= address < start + size for start, size in ranges.items())
