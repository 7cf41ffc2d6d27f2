"""A composed policy at work: what waits, what the GPUs look like, and who goes where.

A decision looks at the first job of each kind of need that may have a chance, not at every job; and at the best GPU
of an order that is kept, not at every GPU. What cannot have become possible since it was last found impossible is not
looked at again: a kind that found no place is blocked until some GPU gets better.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from cotenant.core.fast_constructor import fast_constructor
from cotenant.core.gpu import GpuSnapshot, Sharing
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.placement import fallback_search, rejections
from cotenant.scheduling.placement.gpu_index import LINEAR_SCAN_MAX_GPUS
from cotenant.scheduling.placement.gpu_pool import GpuPool
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.pending_queue import (
    MAX_DEMAND_CLASSES,
    DemandClass,
    PendingJob,
    PendingQueue,
    demand_key,
)
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions
from cotenant.scheduling.placement.reservation import Reservation
from cotenant.scheduling.placement.rules import Rules
from cotenant.scheduling.prediction.interference import GpuActivity

_placement: Callable[[int, tuple[str, ...], Sharing, int], Placement] = fast_constructor(Placement)


class IncrementalPlacer:
    """A composition at work. `linear_scan_max_gpus`: see `rankings`; other values are for tests."""

    def __init__(
        self, rules: Rules, facts: JobPredictions, *, linear_scan_max_gpus: int = LINEAR_SCAN_MAX_GPUS
    ) -> None:
        self._rules = rules
        self._facts = facts
        self._match = rules.match
        self._order = rules.order
        self._fleet = GpuPool(rules, linear_scan_max_gpus=linear_scan_max_gpus)
        self._queue = PendingQueue(in_line=not rules.backfill, sharing=rules.sharing)
        self._asked: dict[Hashable, DemandClass] = {}
        self._due_s: list[float] = []  # when somebody will have waited too long
        self._reservation = Reservation(rules)

    # What is told.

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._queue.entries)

    @property
    def wakes_at_s(self) -> float | None:
        """When a decision may come out differently although nothing changes; None: never."""
        timers, due_s = self._fleet.timers, self._due_s
        if not self._queue.entries or not (timers or due_s):
            return None
        if not due_s:
            return timers[0][0]
        return min(timers[0][0], due_s[0]) if timers else due_s[0]

    def add(self, job: Job) -> None:
        """`job` waits from now on, and may start. Whoever waits already is taken as changed."""
        queue, job_id = self._queue, job.id
        if job_id in queue.entries:
            queue.remove(queue.entries[job_id])
        kind = self._kind_of(job)
        entry = PendingJob(job, self._order(job, self._facts), kind)
        queue.push(entry)
        if kind.blocked:
            self._mind_age(entry)
        if self._reservation.job_id == job_id:
            self._reservation.retry_pending = True

    def _kind_of(self, job: Job) -> DemandClass:
        facts, match = self._facts, self._match
        learned = None if facts is NO_PREDICTIONS else facts.need_bytes(job)
        profile = None if match is None else match.profile(job, facts)
        # What a policy asks for after a failure may depend on each attempt: then needs alone are compared.
        if job.attempts and self._rules.after_oom is not None:
            return self._queue.kind(self._rules.need(job, self._fleet.totals_bytes, learned), profile)
        same = demand_key(job, learned, profile)
        kind = self._asked.get(same)
        if kind is None:
            kind = self._queue.kind(self._rules.need(job, self._fleet.totals_bytes, learned), profile)
            if len(self._asked) >= MAX_DEMAND_CLASSES:
                self._asked.clear()
            self._asked[same] = kind
        return kind

    def remove(self, job_id: int) -> None:
        """The job waits no longer; nothing if it does not wait."""
        entry = self._queue.entries.get(job_id)
        if entry is not None:
            self._queue.remove(entry)
            self._stop_keeping(job_id)

    def update(self, gpu: GpuSnapshot) -> None:
        """The truth about one GPU. The order in which GPUs come for the first time is their display order."""
        self._fleet.update(gpu)

    def release(self, job_id: int) -> None:
        """A job that this placer placed has left its GPUs."""
        self._fleet.release(job_id)

    def seen(self, job_id: int, at_s: float) -> None:
        """A job that this placer placed has touched its GPUs for the first time."""
        self._fleet.seen(job_id, at_s)

    def activity(self, gpu_uuid: str, activity: GpuActivity) -> None:
        """What a GPU was seen to do since its newest resident was at work; stands in for its samples."""
        self._fleet.activity(gpu_uuid, activity)

    # What is decided.

    def decide(self, at_s: float) -> list[Placement]:
        """Who starts now, and where; already counted in when it returns."""
        fleet = self._fleet
        fleet.now_s = at_s
        if fleet.needs_rebuild:
            self._begin_anew()
        if fleet.timers and fleet.timers[0][0] <= at_s:
            fleet.wake(at_s)
        if self._due_s and self._due_s[0] <= at_s:
            self._mind_ages(at_s)
        if fleet.improved:
            if self._queue.blocked:
                self._look_again()
            fleet.improved.clear()
        placements: list[Placement] = []
        if not self._rules.backfill:
            self._in_line(at_s, placements)
            return placements
        if self._reservation.retry_pending:
            self._for_kept(at_s, placements)
        ready = self._queue.ready
        if len(ready) == 1:
            self._of_kind(next(iter(ready)), at_s, placements)
        elif ready:
            self._by_kind(at_s, placements)
        return placements

    def _for_kept(self, at_s: float, placements: list[Placement]) -> None:
        """The job that GPUs are kept for, if it finds them all: it need not be the first of its kind."""
        self._reservation.retry_pending = False
        entry = None if self._reservation.job_id is None else self._queue.entries.get(self._reservation.job_id)
        placement = None if entry is None else self._try(entry, at_s)
        if placement is not None:
            placements.append(placement)

    def _by_kind(self, at_s: float, placements: list[Placement]) -> None:
        """The first of each kind that is not blocked, in order, until all are blocked."""
        heads = [(entry.key, entry) for kind in self._queue.ready if (entry := kind.head()) is not None]
        heapify(heads)
        while heads:
            entry = heads[0][1]
            kind = entry.kind
            placement = self._try(entry, at_s)
            if placement is None:
                heappop(heads)
                self._queue.block(kind)
                self._mind_age(entry)
                continue
            placements.append(placement)
            follower = kind.head()
            if follower is None:
                heappop(heads)
            else:
                heapreplace(heads, (follower.key, follower))

    def _of_kind(self, kind: DemandClass, at_s: float, placements: list[Placement]) -> None:
        """As `_by_kind` where only this one may have a chance, which is the commonest case."""
        while (entry := kind.head()) is not None:
            placement = self._try(entry, at_s)
            if placement is None:
                self._queue.block(kind)
                self._mind_age(entry)
                break
            placements.append(placement)

    def _in_line(self, at_s: float, placements: list[Placement]) -> None:
        """One after the other; the first that finds no place stops all, but a retry lets others pass, and may pass."""
        aside: list[PendingJob] = []
        line = self._queue.line
        while (entry := line.head()) is not None:
            placement = None if entry.kind.blocked else self._try(entry, at_s)
            if placement is not None:
                placements.append(placement)
                continue
            self._queue.block(entry.kind)
            if not entry.retried or self._rules.retries_block:
                break
            aside.append(line.pop())
        for each in aside:
            line.add(each)
        behind = [
            entry for each in self._queue.ignores_activity if not (entry := self._queue.entries[each]).kind.blocked
        ]
        for entry in sorted(behind, key=lambda each: each.key):
            placement = self._try(entry, at_s)
            if placement is None:
                self._queue.block(entry.kind)
            else:
                placements.append(placement)

    def _try(self, entry: PendingJob, at_s: float) -> Placement | None:
        kind, kept, fleet = entry.kind, self._reservation, self._fleet
        if kept.job_id is not None and kept.job_id == entry.job.id:
            chosen = kept.best(kind, fleet.views, fleet.empty if kind.alone else fleet.shared, at_s)
        elif not kind.alone:
            chosen = fleet.shared.best(kind.gpus, kind.bytes_per_gpu, 0, kind.profile)
            if not chosen and kind.need.ignores_activity:
                chosen = fallback_search.include_busy(self._rules, entry, fleet.views, at_s)
        elif kind.need.sharing == "mig":
            chosen = fallback_search.mig_instances(self._rules, entry, fleet.views, at_s)
        else:
            chosen = fleet.empty.best(kind.gpus, kind.bytes_per_gpu, kind.need.min_gpu_bytes, None)
        if not chosen:
            return None
        return self._place(entry, chosen, at_s)

    def _place(self, entry: PendingJob, chosen: Sequence[GpuView], at_s: float) -> Placement:
        kind, job_id = entry.kind, entry.job.id
        promised = kind.promised_bytes
        if promised is None:
            # Who is alone is promised all there is, which is what its GPUs are kept from others for.
            promised = min([each.available_bytes or 0 for each in chosen])
        self._queue.remove(entry)
        self._fleet.assign(entry, chosen, promised, at_s)
        if self._reservation.job_id == job_id:
            self._stop_keeping(job_id)
        uuids = (chosen[0].uuid,) if len(chosen) == 1 else tuple([each.uuid for each in chosen])
        return _placement(job_id, uuids, kind.sharing, promised)

    # What waits, and for what.

    def _begin_anew(self) -> None:
        """GPUs have come, or are of another size: needs, orders and rejections begin afresh."""
        self._fleet.rebuild()
        self._asked.clear()
        waiting = [each.job for each in self._queue.entries.values()]
        self._queue = PendingQueue(in_line=not self._rules.backfill, sharing=self._rules.sharing)
        for job in waiting:
            self.add(job)

    def _look_again(self) -> None:
        """Some GPUs got better: kinds that are blocked, and the job that GPUs are kept for, may have a chance now."""
        fleet = self._fleet
        if self._reservation.job_id is not None and any(
            fleet.views[each].reserved_for is not None for each in fleet.improved
        ):
            self._reservation.retry_pending = True
        self._queue.unblock(fleet.max_improved_bytes())

    def _mind_age(self, entry: PendingJob) -> None:
        """One that waits too long gets GPUs emptied. Called for the first of a kind that is blocked."""
        fleet = self._fleet
        due_at_s = self._reservation.due_at_s(entry, len(fleet.views))
        if due_at_s is None:
            return
        if due_at_s > fleet.now_s:
            heappush(self._due_s, due_at_s)
            return
        for view in self._reservation.begin(entry, fleet.views):
            fleet.reindex(view)

    def _mind_ages(self, at_s: float) -> None:
        """Some of those that are blocked may have waited too long."""
        while self._due_s and self._due_s[0] <= at_s:
            heappop(self._due_s)
        if self._reservation.job_id is None:
            heads = [entry for kind in self._queue.blocked if (entry := kind.head()) is not None]
            for entry in sorted(heads, key=lambda each: each.key):
                self._mind_age(entry)

    def _stop_keeping(self, job_id: int) -> None:
        if self._reservation.job_id != job_id:
            return
        heappush(self._due_s, self._fleet.now_s)  # the next in line may be overdue
        for view in self._reservation.end():
            self._fleet.mark_improved(view)

    def explain(self, job_id: int, at_s: float) -> Deferral:
        """Why a job that waits is not placed, with one verdict for every GPU.

        Raises:
            KeyError: it does not wait.
        """
        fleet, rules = self._fleet, self._rules
        if fleet.needs_rebuild:
            self._begin_anew()
        entry = self._queue.entries[job_id]
        kind = entry.kind
        head = None if rules.backfill else self._queue.line.head()
        stopped = head is not None and head.kind.blocked and head.key < entry.key
        if (
            head is not None
            and stopped
            and not kind.need.ignores_activity
            and (not head.retried or rules.retries_block)
        ):
            return rejections.head_of_line_wait(job_id, head.job.id, fleet.views)
        as_of = (fleet.changes, at_s)
        if self._reservation.job_id == job_id:
            return rejections.deferral(rules, kind, job_id, fleet.views, at_s)
        if kind.answered != as_of or kind.wait is None:
            kind.answered, kind.wait = as_of, rejections.deferral(rules, kind, job_id, fleet.views, at_s)
        return Deferral(job_id=job_id, reason=kind.wait.reason, rejections=kind.wait.rejections)
