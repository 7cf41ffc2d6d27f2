"""A replay with its history kept: bytes by category over the events, and what the allocator did to the driver."""

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
    """A block handed out or taken back, or memory got from or given to the driver.

    `action`: `alloc`, `free`, `oom`; `segment_alloc`, `segment_free`; `segment_map`, `segment_unmap` where segments
    are expandable. `size` is that of the block or segment. `event_index`: of the event that caused it.
    """

    action: str
    address: int
    size: int
    event_index: int


@dataclass(kw_only=True)
class AllocationHistory:
    """What happened on one GPU, in the order of the events.

    Attributes:
        events: those that were replayed, of this GPU only, up to the one that found no memory.
        blocks: what they did; `phases`: (index of its first event, name) of each phase that was entered.
        category_bytes: by category, allocated bytes after each event; `reserved_bytes`: held after each event.
        segments: what was held in the end; `addresses`: event that made the block at an address, of those alive then.
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


def allocation_history(scene: ReplayInput, capacity_bytes: int | None = None, device: int = 0) -> AllocationHistory:
    """Replay `scene` and keep all of it; `capacity_bytes` as of `ReplayInput.replay`."""
    return _RecordingAllocator(scene, capacity_bytes).run(device)


class _WatchedDriver(MemoryDriver):
    """A driver that notes when what it has given out has changed."""

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
    """One replay. An allocator does not say which segments come and go: they are compared when the driver was asked."""

    def __init__(self, scene: ReplayInput, capacity_bytes: int | None) -> None:
        self.scene = scene
        options = scene.stack.options
        self.allocator = CachingAllocator(
            options, scene.stack.rules, capacity_bytes, total_bytes=scene.gpu.usable_bytes
        )
        if capacity_bytes is None and options.per_process_memory_fraction < 1:
            self.allocator.set_memory_fraction(1.0)
        self.driver = _WatchedDriver(capacity_bytes, descending=scene.descending)
        self.allocator.driver = self.driver
        self.expandable = options.expandable_segments
        self.history = AllocationHistory(category_bytes={name: [] for name in CATEGORIES})
        self.now = dict.fromkeys(CATEGORIES, 0)
        self.live: dict[int, tuple[int, int, str]] = {}
        self.held: dict[int, int] = {}

    def run(self, device: int) -> AllocationHistory:
        history = self.history
        for event in self.scene.events:
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
        """One event; False if it found no memory."""
        if event.action == "alloc":
            return self.alloc(index, event)
        if event.action == "free":
            if event.storage_id not in self.live and event.storage_id in self.scene.optional_storages:
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
            if event.storage_id in self.scene.optional_storages:
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
        """Tell the segments that came and went since the last time."""
        if not self.driver.changed:
            return
        self.driver.changed = False
        held = {segment.address: segment.size_bytes for segment in self.allocator.segments()}
        told = _differing_ranges(self.held, held) if self.expandable else _differing_segments(self.held, held)
        self.history.blocks += [BlockEvent(action, address, size, index) for action, address, size in told]
        self.held = held


def _differing_segments(before: dict[int, int], after: dict[int, int]) -> Iterator[tuple[str, int, int]]:
    for address, size in before.items():
        if address not in after:
            yield "segment_free", address, size
    for address, size in after.items():
        if address not in before:
            yield "segment_alloc", address, size


def _differing_ranges(before: dict[int, int], after: dict[int, int]) -> Iterator[tuple[str, int, int]]:
    """Mapped ranges grow, shrink, split and merge: compared piece by piece between all their ends."""
    both = [*before.items(), *after.items()]
    ends = sorted({address for address, _ in both} | {address + size for address, size in both})
    told = []
    for start, end in itertools.pairwise(ends):
        was, held = _covers(before, start), _covers(after, start)
        if was != held:
            told.append(("segment_map" if held else "segment_unmap", start, end - start))
    yield from sorted(told, key=lambda difference: difference[0] == "segment_map")


def _covers(ranges: dict[int, int], address: int) -> bool:
    return any(start <= address < start + size for start, size in ranges.items())
