"""GPUs that are emptied for one job: they take nobody else until it starts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotenant.scheduling.placement import gates, rejections
from cotenant.scheduling.placement.gpu_index import GpuIndex
from cotenant.scheduling.placement.gpu_view import EMPTY, SHARED, GpuView
from cotenant.scheduling.placement.node_packing import pack_fewest_nodes
from cotenant.scheduling.placement.pending_queue import DemandClass, PendingJob
from cotenant.scheduling.placement.rules import Rules


class Reservation:
    """For one job at a time, so that no two wait for each other's GPUs.

    Attributes:
        job_id: whom they are kept for, or None.
        retry_pending: that job may have a chance that it did not have when it was last tried.
    """

    __slots__ = ("_policy", "_views", "job_id", "retry_pending")

    def __init__(self, policy: Rules) -> None:
        self._policy = policy
        self._views: Sequence[GpuView] = ()
        self.job_id: int | None = None
        self.retry_pending = False

    def due_at_s(self, entry: PendingJob, gpus: int) -> float | None:
        """From when on GPUs may be kept for it, on a server of so many; None while they are kept for somebody.

        One that ran out of memory gets them at once, where others have GPUs left.
        """
        after_s = self._policy.reserve_after_s
        if after_s is None or self.job_id is not None:
            return None
        need = entry.kind.need
        ignores_activity = (entry.needs_more or need.ignores_activity) and need.gpus < gpus
        return -math.inf if ignores_activity else entry.since_s + after_s

    def begin(self, entry: PendingJob, views: Sequence[GpuView]) -> Sequence[GpuView]:
        """Keep those of `views` for it that are soonest empty. They have changed; none where too few would do."""
        need = entry.kind.need
        least = max(need.min_gpu_bytes, need.bytes or 0)
        suitable = [
            each
            for each in views
            if each.available_bytes is not None and each.total_bytes >= least and each.reserved_for is None
            if gates.honors_share(need, each) is None
        ]
        if len(suitable) < need.gpus:
            return ()
        self.job_id = entry.job.id
        self.retry_pending = True
        suitable.sort(key=lambda each: (len(each.residents), each.place))
        self._views = pack_fewest_nodes([(len(each.residents), each) for each in suitable], need.gpus)
        for view in self._views:
            view.reserved_for = entry.job.id
        return self._views

    def end(self) -> Sequence[GpuView]:
        """Keep them no longer; those that have changed."""
        released, self._views = self._views, ()
        self.job_id = None
        for view in released:
            view.reserved_for = None
        return released

    def best(self, kind: DemandClass, views: Sequence[GpuView], others: GpuIndex, at_s: float) -> Sequence[GpuView]:
        """For the job that they are kept for, which is of this kind: those first, then any of `others` that will do."""
        need, least = kind.need, kind.bytes_per_gpu
        if self.job_id is None or not self._may_suffice(kind, others):
            return ()
        wanted = EMPTY if need.alone else SHARED
        match = None if need.alone else self._policy.match
        found = [
            view
            for view in views
            # These two lines are for speed: what they leave out would be refused in words.
            if need.ignores_activity or view.eligible_modes & wanted or view.reserved_for == self.job_id
            if (view.available_bytes or 0) >= least
            if match is None or match.cost(kind.profile, view.gpu_class) is not None
            if rejections.rejection(self._policy, kind, self.job_id, view, at_s) is None
        ]
        found.sort(key=lambda each: (each.reserved_for is None, each.place))
        return pack_fewest_nodes([(each.reserved_for is None, each) for each in found], need.gpus)

    def _may_suffice(self, kind: DemandClass, others: GpuIndex) -> bool:
        """Whether they and those in the order do together; told without a look at each."""
        need = kind.need
        if need.ignores_activity:
            return True  # others that are not in the order may do as well
        kept = sum([1 for each in self._views if (each.available_bytes or 0) >= kind.bytes_per_gpu])
        if kept >= need.gpus:
            return True
        least = need.min_gpu_bytes if need.alone else 0
        return bool(others.best(need.gpus - kept, kind.bytes_per_gpu, least, kind.profile))
