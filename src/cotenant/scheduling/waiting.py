"""Jobs that wait, by what they ask for: to know if any of many thousands can start, a few hundred are looked at."""

from __future__ import annotations

from collections.abc import Hashable
from heapq import heapify, heappop, heappush

from cotenant.core.job import Job, Queued
from cotenant.core.placement import Wait
from cotenant.scheduling.ledger import Need
from cotenant.scheduling.recovery import share_of

Key = tuple[float, ...]

FEW_DEAD = 64
MOST_KINDS = 4096


class Entry:
    """A job that waits.

    Attributes:
        key: its place in the order of the policy.
        alive: it still waits, and asks for this.
    """

    __slots__ = ("alive", "job", "key", "kind")

    def __init__(self, job: Job, key: Key, kind: Kind) -> None:
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
        return self.job.floor_bytes > 0 or self.job.exclusive_retry

    def __lt__(self, other: Entry) -> bool:
        """Only asked where keys are equal, that is for a job that was added again: one of the two is dead."""
        return self.alive and not other.alive


class Line:
    """Entries in order. Those that died stay until they come first, or until they are most of all."""

    __slots__ = ("_dead", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[Key, Entry]] = []
        self._dead = 0

    def add(self, entry: Entry) -> None:
        """One more waits."""
        heappush(self._heap, (entry.key, entry))

    def head(self) -> Entry | None:
        """The first that waits, or None."""
        heap = self._heap
        while heap:
            entry = heap[0][1]
            if entry.alive:
                return entry
            heappop(heap)
            self._dead -= 1
        return None

    def step_aside(self) -> Entry:
        """Take the first out; `add` brings it back."""
        return heappop(self._heap)[1]

    def bury(self, entry: Entry) -> None:
        """One of them has died."""
        if self._heap and self._heap[0][1] is entry:
            heappop(self._heap)
            return
        self._dead += 1
        if self._dead > FEW_DEAD and self._dead > len(self._heap) // 2:
            self._heap = [each for each in self._heap if each[1].alive]
            heapify(self._heap)
            self._dead = 0


class Kind(Line):
    """Jobs that ask for the same, so that one answer does for all.

    Attributes:
        bytes_each: to be available on each GPU, with what is to spare.
        profile: what the match of the policy sees in them.
        blocked: nothing has become better for them since one found no place.
        wait: what was last said to one of them, `answered` as of which change and time.
    """

    __slots__ = ("answered", "blocked", "bytes_each", "need", "profile", "wait")

    def __init__(self, need: Need, profile: Hashable) -> None:
        super().__init__()
        self.need = need
        self.profile = profile
        self.bytes_each = (need.bytes or 0) + need.spare_bytes
        self.blocked = False
        self.answered: tuple[int, float] | None = None
        self.wait: Wait | None = None


class Queue:
    """All that wait.

    Attributes:
        entries: by job id.
        ready: kinds that may find a place; `blocked` are the others. Both only if somebody waits.
        line: all of them in order, for a policy that lets nobody pass; else unused.
    """

    def __init__(self, *, in_line: bool) -> None:
        self.entries: dict[int, Entry] = {}
        self.ready: dict[Kind, None] = {}
        self.blocked: dict[Kind, None] = {}
        self.line = Line()
        self._in_line = in_line
        self._kinds: dict[tuple[Need, Hashable], Kind] = {}

    def kind(self, need: Need, profile: Hashable) -> Kind:
        """The kind of those that ask for this."""
        found = self._kinds.get((need, profile))
        if found is None:
            if len(self._kinds) >= MOST_KINDS:
                self._kinds = {key: each for key, each in self._kinds.items() if each.head() is not None}
            found = self._kinds[need, profile] = Kind(need, profile)
        return found

    def enter(self, entry: Entry) -> None:
        """One more waits."""
        kind = entry.kind
        self.entries[entry.job.id] = entry
        kind.add(entry)
        if self._in_line:
            self.line.add(entry)
        if not kind.blocked:
            self.ready[kind] = None

    def strike(self, entry: Entry) -> None:
        """One waits no longer."""
        kind = entry.kind
        entry.alive = False
        del self.entries[entry.job.id]
        kind.bury(entry)
        if self._in_line:
            self.line.bury(entry)
        if kind.head() is None:
            self.ready.pop(kind, None)
            self.blocked.pop(kind, None)
            kind.blocked = False

    def block(self, kind: Kind) -> None:
        """Somebody of this kind found no place."""
        kind.blocked = True
        self.ready.pop(kind, None)
        self.blocked[kind] = None

    def unblock(self, most_shared_bytes: int, most_empty_bytes: int) -> None:
        """GPUs got better, of which so much is available: who may have a chance is looked at again."""
        for kind in list(self.blocked):
            if kind.bytes_each <= (most_empty_bytes if kind.need.alone else most_shared_bytes):
                kind.blocked = False
                del self.blocked[kind]
                self.ready[kind] = None


def asked(job: Job) -> tuple[object, ...]:
    """What the need of `job` follows from, but for what a policy and its facts add; cheap to make and to compare."""
    spec, estimate = job.spec, job.estimate
    return (
        spec.gpus,
        spec.declared_bytes,
        None if estimate is None or estimate.partial else (estimate.bound_bytes, estimate.device_bytes),
        job.floor_bytes,
        spec.exclusive,
        job.exclusive_retry,
        bool(job.attempts),
        share_of(job) if job.attempts else spec.share,
    )
