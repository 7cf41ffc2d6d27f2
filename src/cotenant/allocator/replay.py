"""Replay of a memory trace in the allocator: peaks, what they consist of, and whether they fit."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cotenant.allocator.caching import CachingAllocator
from cotenant.allocator.driver import MemoryDriver
from cotenant.allocator.errors import OutOfMemory
from cotenant.allocator.options import AllocatorOptions
from cotenant.allocator.versions import AllocatorRules
from cotenant.core.trace import MemoryEvent


class TimelinePoint(NamedTuple):
    """Bytes after the event at `event_index`."""

    event_index: int
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OomReport:
    """The request that ran out of memory; numbers as in torch's message.

    Attributes:
        event_index: of the request, in the events as given.
        request_bytes: of the storage; `tried_bytes`: of the segment requested from the driver.
        free_bytes, total_bytes, allowed_bytes: None where not known or not set.
    """

    event_index: int
    phase: str
    module: str
    request_bytes: int
    tried_bytes: int
    free_bytes: int | None
    total_bytes: int | None
    allowed_bytes: int | None
    allocated_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The outcome of a replay for one GPU.

    Attributes:
        peak_allocated_bytes: as `torch.cuda.max_memory_allocated`; `peak_reserved_bytes`: as
            `torch.cuda.max_memory_reserved`; `peak_active_bytes` equals the former, since a trace knows no
            use on other streams.
        peak_requested_bytes: maximum bytes of storages, before rounding.
        allocated_bytes, reserved_bytes: at the end of the trace, or at the out-of-memory error.
        breakdown_bytes: the peak of allocated bytes by category, when it was first reached.
        peak_event_index: of the event that first reached the peak of allocated bytes; None without an allocation.
        retries: number of times that the whole cache was released.
        skipped_storages: number of optional storages for which there was no memory.
        oom: None if everything fit; the replay ends at it.
        timeline: a point for every event but those of phases, if requested.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_requested_bytes: int
    peak_active_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    breakdown_bytes: Mapping[str, int]
    peak_event_index: int | None
    retries: int
    oom: OomReport | None
    skipped_storages: int = 0
    timeline: tuple[TimelinePoint, ...] = field(default=())


def replay(
    events: Iterable[MemoryEvent],
    *,
    options: AllocatorOptions,
    rules: AllocatorRules,
    capacity_bytes: int | None = None,
    total_bytes: int | None = None,
    device: int = 0,
    timeline: bool = False,
    descending: bool = True,
    optional_storages: Container[int] = (),
) -> ReplayResult:
    """Replay the events of `device`; those of other GPUs are skipped.

    `capacity_bytes`, `total_bytes`: as of `CachingAllocator`; `descending`: as of `MemoryDriver`. `optional_storages`:
    without memory for one of these, even after the cache is released, the job does without it.

    Raises:
        ValueError: an `op` event (lower it to `alloc` and `free` first), a storage that is allocated twice, or one that
            is freed and not live.
        UsageError: the options set a memory fraction, and the GPU's memory is not known.
    """
    driver = MemoryDriver(capacity_bytes, descending=descending and not rules.orders_by_age)
    allocator = CachingAllocator(options, rules, capacity_bytes, total_bytes=total_bytes, driver=driver)
    run = _Replay(allocator, points=[] if timeline else None, optional_storages=optional_storages)
    run.serve(events, device)
    return run.result()


def peak_reserved_bytes(
    events: Iterable[MemoryEvent],
    *,
    options: AllocatorOptions,
    rules: AllocatorRules,
    total_bytes: int | None = None,
    descending: bool = True,
    optional_storages: Container[int] = (),
) -> int:
    """`peak_reserved_bytes` of a `replay` with unlimited memory, in half of its time: nothing else is counted.

    `events`: of GPU 0 alone, lowered, as of a trace that was replayed before.
    """
    driver = MemoryDriver(None, descending=descending and not rules.orders_by_age)
    allocator = CachingAllocator(options, rules, total_bytes=total_bytes, driver=driver)
    with contextlib.suppress(OutOfMemory):
        serve(allocator, events, {}, optional_storages)
    return driver.peak_reserved_bytes


def serve(
    allocator: CachingAllocator,
    events: Iterable[MemoryEvent],
    addresses: dict[int, int],
    optional_storages: Container[int] = (),
) -> None:
    """Serve events of one GPU, lowered, and count nothing. `addresses`: those of live storages, updated.

    Raises:
        OutOfMemory: a storage that is not optional finds no memory.
    """
    malloc, free = allocator.malloc, allocator.free
    for action, storage_id, request_bytes, _, _, _, stream, _, _ in events:
        if action == "alloc":
            try:
                addresses[storage_id] = malloc(request_bytes, stream)
            except OutOfMemory:
                if storage_id not in optional_storages:
                    raise
                addresses[storage_id] = 0
        elif action == "free":
            free(addresses.pop(storage_id))
        elif action == "empty_cache":
            allocator.empty_cache()


class _Replay:
    """State of one replay."""

    def __init__(
        self, allocator: CachingAllocator, points: list[TimelinePoint] | None, optional_storages: Container[int]
    ) -> None:
        self.allocator = allocator
        self.points = points
        self.optional_storages = optional_storages
        self.skipped: set[int] = set()
        self.live: dict[int, tuple[int, int, str]] = {}
        self.category_bytes: dict[str, int] = {}
        self.breakdown: dict[str, int] = {}
        self.breakdown_is_due = False
        self.peak_bytes = 0
        self.peak_event_index: int | None = None
        self.oom: OomReport | None = None

    def serve(self, events: Iterable[MemoryEvent], device: int) -> None:
        """All events of `device`, up to the first that finds no memory."""
        points = self.points
        for index, event in enumerate(events):
            action, storage_id, _, _, _, _, _, event_device, _ = event
            if event_device != device:
                continue
            if action == "alloc":
                try:
                    self.alloc(index, event)
                except OutOfMemory as oom:
                    if storage_id not in self.optional_storages:
                        self.oom = _report(oom, index, event)
                        break
                    self.skipped.add(storage_id)
            elif action == "free":
                self.free(index, storage_id)
            elif action == "empty_cache":
                self.allocator.empty_cache()
            elif action != "phase":
                raise ValueError(f"event {index} is `{action}`: lower library calls to `alloc` and `free` first")
            if points is not None and action != "phase":
                allocator = self.allocator
                points.append(TimelinePoint(index, allocator.allocated_bytes, allocator.driver.reserved_bytes))
        if self.breakdown_is_due:
            self.breakdown = dict(self.category_bytes)

    def alloc(self, index: int, event: MemoryEvent) -> None:
        """Allocate a storage; a hot path, like `free`."""
        _, storage_id, request_bytes, category, _, _, stream, _, _ = event
        if storage_id in self.live:
            raise ValueError(f"event {index} allocates storage {storage_id}, which is live")
        allocator = self.allocator
        before = allocator.allocated_bytes
        address = allocator.malloc(request_bytes, stream)
        allocated = allocator.allocated_bytes
        self.live[storage_id] = (address, allocated - before, category)
        by_category = self.category_bytes
        by_category[category] = by_category.get(category, 0) + allocated - before
        if allocated > self.peak_bytes:
            self.peak_bytes, self.peak_event_index, self.breakdown_is_due = allocated, index, True

    def free(self, index: int, storage_id: int) -> None:
        """Free a storage."""
        if self.breakdown_is_due:
            # Copied when the peak is left, and not at every event on the way up.
            self.breakdown, self.breakdown_is_due = dict(self.category_bytes), False
        try:
            address, size, category = self.live.pop(storage_id)
        except KeyError:
            if storage_id in self.skipped:
                return
            raise ValueError(f"event {index} frees storage {storage_id}, which is not live") from None
        self.allocator.free(address)
        self.category_bytes[category] -= size

    def result(self) -> ReplayResult:
        """The outcome."""
        stats = self.allocator.stats
        return ReplayResult(
            peak_allocated_bytes=stats.peak_allocated_bytes,
            peak_reserved_bytes=stats.peak_reserved_bytes,
            peak_requested_bytes=stats.peak_requested_bytes,
            peak_active_bytes=stats.peak_active_bytes,
            allocated_bytes=stats.allocated_bytes,
            reserved_bytes=stats.reserved_bytes,
            breakdown_bytes={category: size for category, size in self.breakdown.items() if size},
            peak_event_index=self.peak_event_index,
            retries=stats.retries,
            oom=self.oom,
            skipped_storages=len(self.skipped),
            timeline=tuple(self.points or ()),
        )


def _report(oom: OutOfMemory, index: int, event: MemoryEvent) -> OomReport:
    return OomReport(
        event_index=index,
        phase=event.phase,
        module=event.module,
        request_bytes=event.bytes,
        tried_bytes=oom.tried_bytes,
        free_bytes=oom.free_bytes,
        total_bytes=oom.total_bytes,
        allowed_bytes=oom.allowed_bytes,
        allocated_bytes=oom.allocated_bytes,
        reserved_bytes=oom.reserved_bytes,
    )
