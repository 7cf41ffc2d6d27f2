"""Jobs that wait, by what they ask for: to know if any of many thousands can start, a few hundred are looked at."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from cotenant.core.gpu import Sharing
from cotenant.core.job import Job, Queued, SharingRequest
from cotenant.core.placement import Deferral
from cotenant.scheduling.placement.memory_demand import MemoryDemand
from cotenant.scheduling.recovery import effective_sharing, has_oomed

Key = tuple[float, ...]

SHARING_MODES: Mapping[SharingRequest, Sharing] = {"time": "time-sliced", "mps": "mps"}

CAPACITY_KINDS = SHARED_CAPACITY, EMPTY_CAPACITY, ANY_CAPACITY = range(3)
"""Where a kind may find a place: where sharing is open, on an empty GPU, or wherever there is memory (see `MemoryDemand`)."""

MIN_DEAD_TO_COMPACT = 64
MAX_DEMAND_CLASSES = 4096


class PendingJob:
    """A job that waits.

    Attributes:
        key: its place in the order of the policy.
        alive: it still waits, and asks for this.
    """

    __slots__ = ("alive", "job", "key", "kind")

    def __init__(self, job: Job, key: Key, kind: DemandClass) -> None:
        self.job = job
        self.key = key
        self.kind = kind
        self.alive = True

    @property
    def since_s(self) -> float:
        """When it came into the queue."""
        state = self.job.state
        return state.since_s if isinstance(state, Queued) else self.job.submitted_at_s

    @property
    def retried(self) -> bool:
        """Whether it was tried before."""
        return bool(self.job.attempts)

    @property
    def needs_more(self) -> bool:
        """Whether it ran out of memory: it had a place and needs a larger one.

        On a busy server no room gets larger while others may take it.
        """
        return self.job.min_memory_bytes > 0 or self.job.exclusive_retry

    def __lt__(self, other: PendingJob) -> bool:
        """Only asked where keys are equal, that is for a job that was added again: one of the two is dead."""
        return self.alive and not other.alive


class LazyHeap:
    """Entries in order. Those that died stay until they come first, or until they are most of all."""

    __slots__ = ("_dead", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[Key, PendingJob]] = []
        self._dead = 0

    def add(self, entry: PendingJob) -> None:
        """One more waits."""
        heappush(self.heap, (entry.key, entry))

    def head(self) -> PendingJob | None:
        """The first that waits, or None."""
        heap = self.heap
        while heap:
            entry = heap[0][1]
            if entry.alive:
                return entry
            heappop(heap)
            self._dead -= 1
        return None

    def pop(self) -> PendingJob:
        """Take the first out; `add` brings it back."""
        return heappop(self.heap)[1]

    def discard(self, entry: PendingJob) -> None:
        """One of them has died."""
        heap = self.heap
        if heap and heap[0][1] is entry:
            heappop(heap)
            return
        self._dead += 1
        if self._dead > MIN_DEAD_TO_COMPACT and self._dead > len(heap) // 2:
            self.heap = [each for each in heap if each[1].alive]
            heapify(self.heap)
            self._dead = 0


class DemandClass(LazyHeap):
    """Jobs that ask for the same, so that one answer does for all.

    Attributes:
        bytes_per_gpu: to be available on each GPU, with what is to spare.
        promised_bytes: what each GPU promises one of them; None: all that it has, for nobody else will be there.
        sharing: how they share, in a policy that shares in the way given.
        profile: what the match of the policy sees in them.
        room: which of `CAPACITY_KINDS` they need.
        blocked: nothing has become better for them since one found no place.
        wait: what was last said to one of them, `answered` as of which change and time.
    """

    __slots__ = (
        "alone",
        "answered",
        "blocked",
        "bytes_per_gpu",
        "capacity_kind",
        "gpus",
        "need",
        "profile",
        "promised_bytes",
        "sharing",
        "wait",
    )

    def __init__(self, need: MemoryDemand, profile: Hashable, sharing: Sharing = "time-sliced") -> None:
        super().__init__()
        self.need = need
        self.gpus = need.gpus
        self.alone = need.alone
        self.profile = profile
        self.bytes_per_gpu = (need.bytes or 0) + need.headroom_bytes
        self.capacity_kind = (
            EMPTY_CAPACITY if need.alone else ANY_CAPACITY if need.ignores_activity else SHARED_CAPACITY
        )
        self.promised_bytes = None if need.alone else need.bytes
        self.sharing: Sharing = "exclusive" if self.promised_bytes is None else SHARING_MODES.get(need.sharing, sharing)
        self.blocked = False
        self.answered: tuple[int, float] | None = None
        self.wait: Deferral | None = None


class PendingQueue:
    """All that wait.

    Attributes:
        entries: by job id.
        ready: kinds that may find a place; `blocked` are the others. Both only if somebody waits.
        line: all of them in order, for a policy that lets nobody pass; else unused.
        at_once: ids of those that ran out of memory, see `MemoryDemand`.
    """

    def __init__(self, *, in_line: bool, sharing: Sharing) -> None:
        self.entries: dict[int, PendingJob] = {}
        self.ready: dict[DemandClass, None] = {}
        self.blocked: dict[DemandClass, None] = {}
        self.line = LazyHeap()
        self.ignores_activity: set[int] = set()
        self._in_line = in_line
        self._sharing: Sharing = sharing
        self._kinds: dict[tuple[MemoryDemand, Hashable], DemandClass] = {}
        self._least = [math.inf] * len(CAPACITY_KINDS)  # bytes of those blocked, by room; less at most

    def kind(self, need: MemoryDemand, profile: Hashable) -> DemandClass:
        """The kind of those that ask for this."""
        found = self._kinds.get((need, profile))
        if found is None:
            if len(self._kinds) >= MAX_DEMAND_CLASSES:
                self._kinds = {key: each for key, each in self._kinds.items() if each.head() is not None}
            found = self._kinds[need, profile] = DemandClass(need, profile, self._sharing)
        return found

    def push(self, entry: PendingJob) -> None:
        """One more waits."""
        kind = entry.kind
        self.entries[entry.job.id] = entry
        heappush(kind.heap, (entry.key, entry))
        if kind.need.ignores_activity:
            self.ignores_activity.add(entry.job.id)
        if self._in_line:
            self.line.add(entry)
        if not kind.blocked:
            self.ready[kind] = None

    def remove(self, entry: PendingJob) -> None:
        """One waits no longer."""
        kind = entry.kind
        entry.alive = False
        del self.entries[entry.job.id]
        kind.discard(entry)
        if kind.need.ignores_activity:
            self.ignores_activity.discard(entry.job.id)
        if self._in_line:
            self.line.discard(entry)
        if not kind.heap or kind.head() is None:
            self.ready.pop(kind, None)
            if kind.blocked:
                del self.blocked[kind]
                kind.blocked = False

    def block(self, kind: DemandClass) -> None:
        """Somebody of this kind found no place."""
        kind.blocked = True
        self.ready.pop(kind, None)
        self.blocked[kind] = None
        self._least[kind.capacity_kind] = min(self._least[kind.capacity_kind], kind.bytes_per_gpu)

    def unblock(self, most_bytes: Sequence[int]) -> None:
        """GPUs got better, with so much available for each of `CAPACITY_KINDS`: who may have a chance is looked at again."""
        for most, least in zip(most_bytes, self._least, strict=True):
            if most >= least:
                break
        else:
            return
        self._least = [math.inf] * len(CAPACITY_KINDS)
        for kind in list(self.blocked):
            if kind.bytes_per_gpu <= most_bytes[kind.capacity_kind]:
                kind.blocked = False
                del self.blocked[kind]
                self.ready[kind] = None
            else:
                self._least[kind.capacity_kind] = min(self._least[kind.capacity_kind], kind.bytes_per_gpu)


def demand_key(job: Job, learned_bytes: int | None, profile: Hashable) -> tuple[object, ...]:
    """What the need of `job` follows from under one policy, with what history knows; cheap to make and to compare."""
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
        None if estimate is None or estimate.partial else (estimate.bound_bytes, estimate.device_bytes),
        job.min_memory_bytes,
        spec.exclusive,
        job.exclusive_retry,
        bool(job.attempts) and (effective_sharing(job), has_oomed(job)),
        spec.sharing,
        learned_bytes,
        profile,
    )
