"""The placer of composed policies. It does not look again at what cannot have changed.

A decision looks at the first job of each demand class that may be placed, not at every job; and at the best GPU of an
index, not at every GPU. A class of which one job was not placed is blocked until a GPU improves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush, heapreplace

from cotenant.core.fast_constructor import fast_constructor
from cotenant.core.gpu import GpuSnapshot, Sharing
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.placement.composition import Composition
from cotenant.scheduling.placement.gpu_index import LINEAR_SCAN_MAX_GPUS
from cotenant.scheduling.placement.gpu_pool import GpuPool
from cotenant.scheduling.placement.pending_queue import (
    MAX_DEMAND_CLASSES,
    DemandClass,
    PendingJob,
    PendingQueue,
    demand_key,
)
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions
from cotenant.scheduling.placement.reservation import Reservation, confined, include_busy, mig_instances
from cotenant.scheduling.placement.rules import has_time, head_of_line_wait
from cotenant.scheduling.prediction.interference import GpuActivity
from cotenant.scheduling.recovery import is_first

_placement: Callable[[int, tuple[str, ...], Sharing, int], Placement] = fast_constructor(Placement)


class IncrementalPlacer:
    """Follows a queue and GPUs. `linear_scan_max_gpus`: see `gpu_index`; other values are for tests."""

    def __init__(
        self, policy: Composition, predictions: JobPredictions, *, linear_scan_max_gpus: int = LINEAR_SCAN_MAX_GPUS
    ) -> None:
        self._policy = policy
        self._predictions = predictions
        self._pairing = policy.pairing
        self._order = policy.order
        self._pool = GpuPool(policy, linear_scan_max_gpus=linear_scan_max_gpus)
        self._queue = self._empty_queue()
        self._class_by_key: dict[Hashable, DemandClass] = {}
        self._due_s: list[float] = []  # when a job will have waited for long enough to get a reservation
        self._reservation = Reservation(self._pool.rules, policy.reserve_after_s)

    def _empty_queue(self) -> PendingQueue:
        return PendingQueue(strict_order=not self._policy.backfill, sharing=self._policy.sharing)

    # What is observed.

    @property
    def waiting(self) -> int:
        """The number of pending jobs."""
        return len(self._queue.entries)

    @property
    def wakes_at_s(self) -> float | None:
        """When a decision may come out differently although nothing changes; None: never."""
        timers, due_s = self._pool.timers, self._due_s
        if not self._queue.entries or not (timers or due_s):
            return None
        if not due_s:
            return timers[0][0]
        return min(timers[0][0], due_s[0]) if timers else due_s[0]

    @property
    def reserved(self) -> Mapping[str, int]:
        """For which job GPUs are reserved, by UUID."""
        return self._reservation.gpus

    def add(self, job: Job) -> None:
        """`job` is pending and may start. A job that is pending already has changed."""
        queue, job_id = self._queue, job.id
        if job_id in queue.entries:
            queue.remove(queue.entries[job_id])
        demand_class = self._class_of(job)
        key = self._order(job, self._predictions)
        if job.attempts and is_first(job):
            # A job that lost its memory to another user's overrun is ahead of all, in whatever order they are.
            key = (-math.inf, *key)
        pending = PendingJob(job, key, demand_class)
        queue.push(pending)
        if demand_class.blocked:
            self._reserve_if_due(pending)
        if self._reservation.job_id == job_id:
            self._reservation.retry_pending = True

    def _class_of(self, job: Job) -> DemandClass:
        predictions, pairing = self._predictions, self._pairing
        learned = None if predictions is NO_PREDICTIONS else predictions.demand_bytes(job)
        profile = None if pairing is None else pairing.profile(job, predictions)
        # A policy's demand after a failure may depend on every attempt: then only demands are compared.
        if job.attempts and self._policy.after_oom is not None:
            return self._new_class(job, learned, profile)
        key: Hashable = demand_key(job, learned, profile)
        if self._pool.is_timed:
            key = (key, job.spec.time_limit_s)
        demand_class = self._class_by_key.get(key)
        if demand_class is None:
            demand_class = self._new_class(job, learned, profile)
            if len(self._class_by_key) >= MAX_DEMAND_CLASSES:
                self._class_by_key.clear()
            self._class_by_key[key] = demand_class
        return demand_class

    def _new_class(self, job: Job, learned_bytes: int | None, profile: Hashable) -> DemandClass:
        pool = self._pool
        demand = self._policy.demand(job, pool.sizes, learned_bytes, is_timed=pool.is_timed)
        return self._queue.demand_class(demand if profile is None else replace(demand, profile=profile))

    def remove(self, job_id: int) -> None:
        """The job is no longer pending; nothing if it is not."""
        pending = self._queue.entries.get(job_id)
        if pending is not None:
            self._queue.remove(pending)
            self._end_reservation(job_id)

    def update(self, gpu: GpuSnapshot) -> None:
        """Replace the state of one GPU. The order of the first updates is the display order of the GPUs."""
        self._pool.update(gpu)

    def release(self, job_id: int) -> None:
        """A job that this placer placed has left its GPUs."""
        self._pool.release(job_id)

    def mark_active(self, job_id: int, at_s: float) -> None:
        """A job that this placer placed has used its GPUs for the first time."""
        self._pool.mark_active(job_id, at_s)

    def set_activity(self, gpu_uuid: str, activity: GpuActivity) -> None:
        """Set the mean activity of a GPU since its newest resident was first active; it stands in for samples."""
        self._pool.set_activity(gpu_uuid, activity)

    # What is decided.

    def decide(self, at_s: float) -> list[Placement]:
        """Which jobs start now, and where. Their promises count as soon as it returns."""
        pool = self._pool
        pool.now_s = at_s
        if pool.needs_rebuild:
            self._rebuild()
        if pool.timers and pool.timers[0][0] <= at_s:
            pool.wake(at_s)
        if self._due_s and self._due_s[0] <= at_s:
            self._reserve_for_overdue(at_s)
        if pool.improved:
            if self._queue.blocked:
                self._unblock()
            pool.improved.clear()
        placements: list[Placement] = []
        if not self._policy.backfill:
            self._place_in_order(at_s, placements)
            return placements
        if self._reservation.retry_pending:
            self._place_reserved(at_s, placements)
        ready = self._queue.ready
        if len(ready) == 1:
            self._place_class(next(iter(ready)), at_s, placements)
        elif ready:
            self._place_classes(at_s, placements)
        return placements

    def _place_reserved(self, at_s: float, placements: list[Placement]) -> None:
        """The job with the reservation, if it finds all of its GPUs: it need not be the first of its class."""
        self._reservation.retry_pending = False
        job_id = self._reservation.job_id
        pending = None if job_id is None else self._queue.entries.get(job_id)
        placement = None if pending is None else self._place(pending, at_s)
        if placement is not None:
            placements.append(placement)

    def _place_classes(self, at_s: float, placements: list[Placement]) -> None:
        """The first of each class that is not blocked, in order, until all are blocked."""
        classes = self._queue.ready
        heads = [(head.key, head) for demand_class in classes if (head := demand_class.head()) is not None]
        heapify(heads)
        while heads:
            pending = heads[0][1]
            demand_class = pending.demand_class
            placement = self._place(pending, at_s)
            if placement is None:
                heappop(heads)
                self._queue.block(demand_class)
                self._reserve_if_due(pending)
                continue
            placements.append(placement)
            follower = demand_class.head()
            if follower is None:
                heappop(heads)
            else:
                heapreplace(heads, (follower.key, follower))

    def _place_class(self, demand_class: DemandClass, at_s: float, placements: list[Placement]) -> None:
        """As `_place_classes` if only this one may be placed, which is the commonest case."""
        while (pending := demand_class.head()) is not None:
            placement = self._place(pending, at_s)
            if placement is None:
                self._queue.block(demand_class)
                self._reserve_if_due(pending)
                break
            placements.append(placement)

    def _place_in_order(self, at_s: float, placements: list[Placement]) -> None:
        """One after the other. The first that is not placed blocks the rest, see `_stops_others`.

        A job that ran out of memory and is retried is not blocked by others.
        """
        passed: list[PendingJob] = []
        in_order = self._queue.in_order
        while (pending := in_order.head()) is not None:
            placement = None if pending.demand_class.blocked else self._place(pending, at_s)
            if placement is not None:
                placements.append(placement)
                continue
            self._queue.block(pending.demand_class)
            if self._stops_others(pending, at_s):
                break
            passed.append(in_order.pop())
        for pending in passed:
            in_order.push(pending)
        entries = self._queue.entries
        behind = [
            pending for job_id in self._queue.ignoring_activity if not (pending := entries[job_id]).demand_class.blocked
        ]
        for pending in sorted(behind, key=lambda behind: behind.key):
            placement = self._place(pending, at_s)
            if placement is None:
                self._queue.block(pending.demand_class)
            else:
                placements.append(placement)

    def _stops_others(self, pending: PendingJob, at_s: float) -> bool:
        """Whether the first job, which was not placed, blocks the rest: it does not if no time will change that."""
        demand = pending.demand_class.demand
        if pending.is_retry and not self._policy.retries_block:
            return False
        return demand.time_limit_s is None or any(has_time(view, demand, at_s) for view in self._pool.views)

    def _place(self, pending: PendingJob, at_s: float) -> Placement | None:
        pool, demand_class, job_id = self._pool, pending.demand_class, pending.job.id
        demand, reserved_for = demand_class.demand, self._reservation.job_id
        if reserved_for == job_id:
            others = pool.exclusive if demand.exclusive else pool.shared
            chosen = self._reservation.best(pending, pool.views, others, at_s)
        elif not demand.exclusive:
            if demand.is_confined:
                chosen = confined(pool.shared, demand, at_s)
            else:
                chosen = pool.shared.best(demand, demand.gpus)
            if not chosen and demand.ignores_activity:
                chosen = include_busy(pool.rules, pending, pool.views, at_s)
        elif demand.sharing == "mig":
            chosen = mig_instances(pool.rules, pending, pool.views, at_s)
        elif demand.is_confined:
            chosen = confined(pool.exclusive, demand, at_s)
        else:
            chosen = pool.exclusive.best(demand, demand.gpus)
        if not chosen:
            return None
        promised = demand_class.promised_bytes
        if promised is None:
            # An exclusive job is promised all that is available, for its GPUs admit no other.
            promised = min([view.available_bytes or 0 for view in chosen])
        self._queue.remove(pending)
        pool.assign(pending, chosen, promised, at_s)
        if reserved_for == job_id:
            self._end_reservation(job_id)
        uuids = (chosen[0].uuid,) if len(chosen) == 1 else tuple([view.uuid for view in chosen])
        return _placement(job_id, uuids, demand_class.sharing, promised)

    # Which jobs are blocked, and reservations.

    def _rebuild(self) -> None:
        """GPUs were added, or changed their size: make indexes and demands anew."""
        self._pool.rebuild()
        self._class_by_key.clear()
        pending_jobs = [pending.job for pending in self._queue.entries.values()]
        self._queue = self._empty_queue()
        for job in pending_jobs:
            self.add(job)

    def _unblock(self) -> None:
        """GPUs improved: blocked classes, and the job with the reservation, may be placed now."""
        pool, reservation = self._pool, self._reservation
        is_reserved = reservation.job_id is not None
        if is_reserved and any(pool.views[place].reserved_for is not None for place in pool.improved):
            reservation.retry_pending = True
        self._queue.unblock(pool.max_improved_bytes())

    def _reserve_if_due(self, pending: PendingJob) -> None:
        """Reserve GPUs for a job that has waited for too long. Called for the first of a blocked class."""
        pool = self._pool
        due_at_s = self._reservation.due_at_s(pending, len(pool.views))
        if due_at_s is None:
            return
        if due_at_s > pool.now_s:
            heappush(self._due_s, due_at_s)
            return
        for view in self._reservation.begin(pending, pool.views, pool.now_s):
            pool.reindex(view)
        if self._reservation.expires_at_s < math.inf:
            heappush(self._due_s, self._reservation.expires_at_s)

    def _reserve_for_overdue(self, at_s: float) -> None:
        """Blocked jobs may have waited for too long."""
        while self._due_s and self._due_s[0] <= at_s:
            heappop(self._due_s)
        if self._reservation.job_id is not None and self._reservation.expires_at_s <= at_s:
            self._end_reservation(self._reservation.job_id)
        if self._reservation.job_id is None:
            heads = [head for demand_class in self._queue.blocked if (head := demand_class.head()) is not None]
            for pending in sorted(heads, key=lambda head: head.key):
                self._reserve_if_due(pending)

    def _end_reservation(self, job_id: int) -> None:
        if self._reservation.job_id != job_id:
            return
        heappush(self._due_s, self._pool.now_s)  # the next job may be overdue
        for view in self._reservation.end():
            self._pool.mark_improved(view)

    def explain(self, job_id: int, at_s: float) -> Deferral:
        """Why a pending job is not placed, with one rejection for every GPU.

        Raises:
            KeyError: it is not pending.
        """
        pool, policy = self._pool, self._policy
        if pool.needs_rebuild:
            self._rebuild()
        pending = self._queue.entries[job_id]
        demand_class = pending.demand_class
        demand = demand_class.demand
        head = None if policy.backfill else self._queue.in_order.head()
        is_behind = head is not None and head.demand_class.blocked and head.key < pending.key
        is_blocked = is_behind and not demand.ignores_activity
        if head is not None and is_blocked and self._stops_others(head, at_s):
            return head_of_line_wait(job_id, head.job.id, pool.views)
        if self._reservation.job_id == job_id:
            return pool.rules.deferral(demand, job_id, pool.views, at_s)
        as_of = (pool.changes, at_s)
        deferral = demand_class.deferral
        if demand_class.explained_as_of != as_of or deferral is None:
            deferral = pool.rules.deferral(demand, job_id, pool.views, at_s)
            demand_class.explained_as_of, demand_class.deferral = as_of, deferral
        return replace(deferral, job_id=job_id)
