"""Searches over every GPU, for the few jobs that no index serves; and reservations, which are one reason for them.

The indexes know neither of the ends of GPUs, because time passes without a change, nor of gangs on one node.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import islice

from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement.gpu_index import GpuIndex
from cotenant.scheduling.placement.gpu_view import EXCLUSIVE, SHARED, GpuView
from cotenant.scheduling.placement.node_packing import pack_fewest_nodes, pack_one_node
from cotenant.scheduling.placement.pending_queue import PendingJob
from cotenant.scheduling.placement.refusal import Refusal
from cotenant.scheduling.placement.rules import AdmissionRules, fitting, has_time, latest_start_s
from cotenant.scheduling.recovery import is_first


def mig_instances(
    rules: AdmissionRules, pending: PendingJob, views: Sequence[GpuView], at_s: float
) -> Sequence[GpuView]:
    """The smallest MIG instances that will do; empty if there are too few."""
    demand = pending.demand_class.demand
    empty = [view for view in views if view.eligible_modes & EXCLUSIVE]
    ranked = [(view.total_bytes, view) for view in _admitting(rules, pending, empty, at_s)]
    ranked.sort(key=lambda item: (item[0], item[1].place))
    return _chosen(ranked, demand)


def include_busy(
    rules: AdmissionRules, pending: PendingJob, views: Sequence[GpuView], at_s: float
) -> Sequence[GpuView]:
    """For a demand that ignores activity: also GPUs that gates on activity close, but open ones first."""
    demand = pending.demand_class.demand

    def rank(view: GpuView) -> tuple[float, ...]:
        cost = 0.0 if rules.pairing is None else rules.pairing.judge(demand.profile, view.gpu_class)
        is_closed = not view.eligible_modes & SHARED
        return (is_closed, 0.0 if isinstance(cost, Refusal) else cost, -(view.available_bytes or 0))

    ranked = [(rank(view), view) for view in _admitting(rules, pending, views, at_s)]
    ranked.sort(key=lambda item: (item[0], item[1].place))
    return _chosen(ranked, demand)


def confined(index: GpuIndex, demand: Demand, at_s: float) -> Sequence[GpuView]:
    """The best GPUs of an index for a demand with a time limit, or for GPUs of one node; empty if there are too few."""
    ranked = ((rank, view) for rank, view in index.ranked(demand) if has_time(view, demand, at_s))
    return _chosen(ranked, demand) if demand.gpus > 1 else [view for _, view in islice(ranked, 1)]


def _chosen(ranked: Iterable[tuple[Hashable, GpuView]], demand: Demand) -> Sequence[GpuView]:
    return (pack_one_node if demand.one_node else pack_fewest_nodes)(ranked, demand.gpus)


def _admitting(rules: AdmissionRules, pending: PendingJob, views: Sequence[GpuView], at_s: float) -> list[GpuView]:
    demand, job_id = pending.demand_class.demand, pending.job.id
    # Memory first: it refuses most, and costs least.
    return [view for view in fitting(views, demand) if rules.admits(view, demand, job_id, at_s)]


class Reservation:
    """GPUs that are drained for one job: they admit no other until it starts.

    For one job at a time, so that no two jobs wait for each other's GPUs.

    Attributes:
        job_id: the job they are reserved for, or None.
        retry_pending: that job may be placed now although it could not when it was last tried.
        expires_at_s: from then on a reserved GPU is available for less than its time limit; infinite if none ends.
    """

    __slots__ = ("_after_s", "_rules", "_views", "expires_at_s", "job_id", "retry_pending")

    def __init__(self, rules: AdmissionRules, reserve_after_s: float | None) -> None:
        self._rules = rules
        self._after_s = reserve_after_s
        self._views: Sequence[GpuView] = ()
        self.job_id: int | None = None
        self.retry_pending = False
        self.expires_at_s = math.inf

    @property
    def gpus(self) -> Mapping[str, int]:
        """For which job GPUs are reserved, by UUID."""
        return {view.uuid: view.reserved_for for view in self._views if view.reserved_for is not None}

    def due_at_s(self, pending: PendingJob, gpus: int) -> float | None:
        """From when on GPUs may be reserved for a job, on a server of `gpus`; None while there is a reservation.

        A job that ran out of memory gets one at once, unless it takes all GPUs.
        """
        if self._after_s is None or self.job_id is not None:
            return None
        demand = pending.demand_class.demand
        at_once = (pending.has_precedence or demand.ignores_activity) and demand.gpus < gpus
        return -math.inf if at_once else pending.since_s + self._after_s

    def begin(self, pending: PendingJob, views: Sequence[GpuView], at_s: float) -> Sequence[GpuView]:
        """Reserve those of `views` with the fewest residents, and return them; none if too few will ever do."""
        demand = pending.demand_class.demand
        least = max(demand.min_gpu_bytes, demand.bytes or 0)
        is_timed = demand.time_limit_s is not None
        by_residents: dict[int, list[GpuView]] = {}
        for view in views:
            if view.available_bytes is None or view.total_bytes < least or view.reserved_for is not None:
                continue
            if demand.sharing == "mig" and view.snapshot.gpu.mig_profile is None:
                continue
            if is_timed and at_s >= latest_start_s(view, demand):
                continue
            by_residents.setdefault(len(view.residents), []).append(view)
        ranked = ((residents, view) for residents in sorted(by_residents) for view in by_residents[residents])
        chosen = _chosen(ranked, demand)
        if len(chosen) < demand.gpus:
            return ()
        self.job_id = pending.job.id
        self.retry_pending = True
        self._views = chosen
        self.expires_at_s = min(latest_start_s(view, demand) for view in chosen)
        reason = "which ran out of memory and needs more" if pending.has_precedence else "which has waited long"
        if is_first(pending.job):
            reason = "which lost its memory to a neighbor"
        for view in self._views:
            view.reserved_for, view.reservation_reason = pending.job.id, reason
        return self._views

    def end(self) -> Sequence[GpuView]:
        """Cancel the reservation; the GPUs that were reserved."""
        released, self._views = self._views, ()
        self.job_id, self.expires_at_s = None, math.inf
        for view in released:
            view.reserved_for = None
        return released

    def best(self, pending: PendingJob, views: Sequence[GpuView], others: GpuIndex, at_s: float) -> Sequence[GpuView]:
        """GPUs for the job of the reservation: reserved ones first, then any other that admits it."""
        demand = pending.demand_class.demand
        if self.job_id is None or not self._may_suffice(pending, others):
            return ()
        mode = EXCLUSIVE if demand.exclusive else SHARED
        # For speed: GPUs that are neither eligible nor reserved would be refused by the rules.
        candidates = [
            view
            for view in views
            if demand.ignores_activity or view.eligible_modes & mode or view.reserved_for == self.job_id
        ]
        ranked = [(view.reserved_for is None, view) for view in _admitting(self._rules, pending, candidates, at_s)]
        ranked.sort(key=lambda item: (item[0], item[1].place))
        return _chosen(ranked, demand)

    def _may_suffice(self, pending: PendingJob, others: GpuIndex) -> bool:
        """Whether the reserved GPUs and those of the index may be enough, without a look at each."""
        demand = pending.demand_class.demand
        if demand.ignores_activity:
            return True  # GPUs outside of the index may do as well
        reserved = len(fitting(self._views, demand))
        return reserved >= demand.gpus or bool(others.best(demand, demand.gpus - reserved))
