"""Pending jobs by what they demand: of many thousands, a decision looks at the first of a few hundred classes."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from cotenant.core.gpu import Sharing
from cotenant.core.job import Job, Queued, SharingRequest
from cotenant.core.placement import Deferral
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.recovery import effective_sharing, has_precedence

Key = tuple[float, ...]

SHARING_MODES: Mapping[SharingRequest, Sharing] = {"time": "time-sliced", "mps": "mps"}

CAPACITY_KINDS = SHARED_CAPACITY, EMPTY_CAPACITY, ANY_CAPACITY = range(3)
"""Where a class may be placed: on GPUs open to sharing, on empty GPUs, or wherever there is memory."""

MIN_DEAD_TO_COMPACT = 64
MAX_DEMAND_CLASSES = 4096


class PendingJob:
    """A job in the queue.

    Attributes:
        key: its position in the order of the policy.
        alive: it is still pending, with this demand.
    """

    __slots__ = ("alive", "demand_class", "job", "key")

    def __init__(self, job: Job, key: Key, demand_class: DemandClass) -> None:
        self.job = job
        self.key = key
        self.demand_class = demand_class
        self.alive = True

    @property
    def since_s(self) -> float:
        """When it was queued."""
        state = self.job.state
        return state.since_s if isinstance(state, Queued) else self.job.submitted_at_s

    @property
    def is_retry(self) -> bool:
        """Whether an attempt of it ended before."""
        return bool(self.job.attempts)

    @property
    def has_precedence(self) -> bool:
        """Whether it ran out of memory, as samples bear out: it was placed once and may need more now.

        On a busy server no GPU gets more memory available while others may take it.
        """
        return bool(self.job.attempts) and has_precedence(self.job)

    def __lt__(self, other: PendingJob) -> bool:
        """Decides between equal keys, that is between entries of a job that was added again: one of them is dead."""
        return self.alive and not other.alive


class LazyHeap:
    """Pending jobs in order. A removed one stays in the heap, dead, until it comes first or most of them are dead."""

    __slots__ = ("_dead", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[Key, PendingJob]] = []
        self._dead = 0

    def push(self, pending: PendingJob) -> None:
        """Add one."""
        heappush(self.heap, (pending.key, pending))

    def head(self) -> PendingJob | None:
        """The first, or None."""
        heap = self.heap
        while heap:
            pending = heap[0][1]
            if pending.alive:
                return pending
            heappop(heap)
            self._dead -= 1
        return None

    def pop(self) -> PendingJob:
        """Take the first out; `push` brings it back."""
        return heappop(self.heap)[1]

    def discard(self, pending: PendingJob) -> None:
        """One of them has just died."""
        heap = self.heap
        if heap and heap[0][1] is pending:
            heappop(heap)
            return
        self._dead += 1
        if self._dead > MIN_DEAD_TO_COMPACT and self._dead > len(heap) // 2:
            self.heap = [item for item in heap if item[1].alive]
            heapify(self.heap)
            self._dead = 0


class DemandClass(LazyHeap):
    """Pending jobs with the same demand: what is decided for the first of them holds for all.

    Attributes:
        bytes_per_gpu: of the demand, for speed.
        promised_bytes: what each GPU promises one of them; None: all that is available, for a job that is exclusive.
        sharing: how they share, under a policy that shares as given.
        capacity_kind: which of `CAPACITY_KINDS` they need.
        blocked: one of them was not placed, and no GPU has improved for them since.
        deferral: the newest explanation for one of them, `explained_as_of` a number of changes and a time.
    """

    __slots__ = (
        "blocked",
        "bytes_per_gpu",
        "capacity_kind",
        "deferral",
        "demand",
        "explained_as_of",
        "promised_bytes",
        "sharing",
    )

    def __init__(self, demand: Demand, sharing: Sharing = "time-sliced") -> None:
        super().__init__()
        self.demand = demand
        self.bytes_per_gpu = demand.bytes_per_gpu
        self.capacity_kind = SHARED_CAPACITY
        if demand.exclusive:
            self.capacity_kind = EMPTY_CAPACITY
        elif demand.ignores_activity:
            self.capacity_kind = ANY_CAPACITY
        self.promised_bytes = None if demand.exclusive else demand.bytes
        is_exclusive = self.promised_bytes is None
        self.sharing: Sharing = "exclusive" if is_exclusive else SHARING_MODES.get(demand.sharing, sharing)
        self.blocked = False
        self.explained_as_of: tuple[int, float] | None = None
        self.deferral: Deferral | None = None


class PendingQueue:
    """All pending jobs.

    Attributes:
        entries: by job id.
        ready: classes that may be placed; `blocked` are the others. Both have only classes with pending jobs.
        in_order: all jobs in order, for a policy that starts them strictly in order; else unused.
        ignoring_activity: ids of the jobs that ran out of memory, see `Demand`.
    """

    def __init__(self, *, strict_order: bool, sharing: Sharing) -> None:
        self.entries: dict[int, PendingJob] = {}
        self.ready: dict[DemandClass, None] = {}
        self.blocked: dict[DemandClass, None] = {}
        self.in_order = LazyHeap()
        self.ignoring_activity: set[int] = set()
        self._strict_order = strict_order
        self._sharing: Sharing = sharing
        self._classes: dict[Demand, DemandClass] = {}
        self._min_blocked_bytes = [math.inf] * len(CAPACITY_KINDS)  # or less

    def demand_class(self, demand: Demand) -> DemandClass:
        """The class of the jobs with this demand."""
        found = self._classes.get(demand)
        if found is None:
            if len(self._classes) >= MAX_DEMAND_CLASSES:
                self._classes = {key: known for key, known in self._classes.items() if known.head() is not None}
            found = self._classes[demand] = DemandClass(demand, self._sharing)
        return found

    def push(self, pending: PendingJob) -> None:
        """Add one."""
        demand_class = pending.demand_class
        self.entries[pending.job.id] = pending
        heappush(demand_class.heap, (pending.key, pending))
        if demand_class.capacity_kind == ANY_CAPACITY:
            self.ignoring_activity.add(pending.job.id)
        if self._strict_order:
            self.in_order.push(pending)
        if not demand_class.blocked:
            self.ready[demand_class] = None

    def remove(self, pending: PendingJob) -> None:
        """Remove one."""
        demand_class = pending.demand_class
        pending.alive = False
        del self.entries[pending.job.id]
        demand_class.discard(pending)
        if demand_class.capacity_kind == ANY_CAPACITY:
            self.ignoring_activity.discard(pending.job.id)
        if self._strict_order:
            self.in_order.discard(pending)
        if not demand_class.heap or demand_class.head() is None:
            self.ready.pop(demand_class, None)
            if demand_class.blocked:
                del self.blocked[demand_class]
                demand_class.blocked = False

    def block(self, demand_class: DemandClass) -> None:
        """A job of this class was not placed."""
        demand_class.blocked = True
        self.ready.pop(demand_class, None)
        self.blocked[demand_class] = None
        least, kind, needed = self._min_blocked_bytes, demand_class.capacity_kind, demand_class.bytes_per_gpu
        least[kind] = needed if needed < least[kind] else least[kind]  # a third of the time of `min`

    def unblock(self, max_bytes: Sequence[int]) -> None:
        """GPUs improved, with at most so much available for each of `CAPACITY_KINDS`: classes that it may do for."""
        for available, needed in zip(max_bytes, self._min_blocked_bytes, strict=True):
            if available >= needed:
                break
        else:
            return
        least = self._min_blocked_bytes = [math.inf] * len(CAPACITY_KINDS)
        for demand_class in list(self.blocked):
            kind, needed = demand_class.capacity_kind, demand_class.bytes_per_gpu
            if needed <= max_bytes[kind]:
                demand_class.blocked = False
                del self.blocked[demand_class]
                self.ready[demand_class] = None
            elif needed < least[kind]:
                least[kind] = needed


def demand_key(job: Job, learned_bytes: int | None, profile: Hashable) -> tuple[object, ...]:
    """What the demand of `job` under one policy follows from; cheaper to make and to compare than the demand."""
    spec, estimate = job.spec, job.estimate
    if estimate is None and not job.attempts and not job.exclusive_retry:
        return (
            spec.gpus,
            spec.declared_bytes,
            job.min_memory_bytes,
            spec.exclusive,
            spec.sharing,
            learned_bytes,
            profile,
        )
    return (
        spec.gpus,
        spec.declared_bytes,
        None if estimate is None or estimate.partial else (estimate.bound_bytes, estimate.device_bytes, estimate.eager),
        job.min_memory_bytes,
        spec.exclusive,
        job.exclusive_retry,
        bool(job.attempts) and (effective_sharing(job), has_precedence(job)),
        spec.sharing,
        learned_bytes,
        profile,
    )
