"""GPUs that are emptied for one job: they take nobody else until it starts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cotenant.scheduling import filters
from cotenant.scheduling.placing import verdicts
from cotenant.scheduling.placing.gangs import in_fewest_servers
from cotenant.scheduling.placing.rankings import Ranking
from cotenant.scheduling.placing.rules import Rules
from cotenant.scheduling.placing.views import EMPTY, SHARED, GpuView
from cotenant.scheduling.placing.waiting import Entry, Kind


class Kept:
    """For one job at a time, so that no two wait for each other's GPUs.

    Attributes:
        job_id: whom they are kept for, or None.
        try_now: that job may have a chance that it did not have when it was last tried.
    """

    __slots__ = ("_policy", "_views", "job_id", "try_now")

    def __init__(self, policy: Rules) -> None:
        self._policy = policy
        self._views: Sequence[GpuView] = ()
        self.job_id: int | None = None
        self.try_now = False

    def due_at_s(self, entry: Entry, gpus: int) -> float | None:
        """From when on GPUs may be kept for it, on a server of so many; None while they are kept for somebody.

        One that ran out of memory gets them at once, where others have GPUs left.
        """
        after_s = self._policy.keep_after_s
        if after_s is None or self.job_id is not None:
            return None
        need = entry.kind.need
        at_once = (entry.needs_more or need.at_once) and need.gpus < gpus
        return -math.inf if at_once else entry.since_s + after_s

    def begin(self, entry: Entry, views: Sequence[GpuView]) -> Sequence[GpuView]:
        """Keep those of `views` for it that are soonest empty. They have changed; none where too few would do."""
        need = entry.kind.need
        least = max(need.least_total_bytes, need.bytes or 0)
        suitable = [
            each
            for each in views
            if each.available_bytes is not None and each.total_bytes >= least and each.kept_for is None
            if filters.honors_share(need, each) is None
        ]
        if len(suitable) < need.gpus:
            return ()
        self.job_id = entry.job.id
        self.try_now = True
        suitable.sort(key=lambda each: (len(each.residents), each.place))
        self._views = in_fewest_servers([(len(each.residents), each) for each in suitable], need.gpus)
        for view in self._views:
            view.kept_for = entry.job.id
        return self._views

    def end(self) -> Sequence[GpuView]:
        """Keep them no longer; those that have changed."""
        released, self._views = self._views, ()
        self.job_id = None
        for view in released:
            view.kept_for = None
        return released

    def best(self, kind: Kind, views: Sequence[GpuView], others: Ranking, at_s: float) -> Sequence[GpuView]:
        """For the job that they are kept for, which is of this kind: those first, then any of `others` that will do."""
        need, least = kind.need, kind.bytes_each
        if self.job_id is None or not self._may_suffice(kind, others):
            return ()
        wanted = EMPTY if need.alone else SHARED
        match = None if need.alone else self._policy.match
        found = [
            view
            for view in views
            # These two lines are for speed: what they leave out would be refused in words.
            if need.at_once or view.filed & wanted or view.kept_for == self.job_id
            if (view.available_bytes or 0) >= least
            if match is None or match.cost(kind.profile, view.signature) is not None
            if verdicts.verdict(self._policy, kind, self.job_id, view, at_s) is None
        ]
        found.sort(key=lambda each: (each.kept_for is None, each.place))
        return in_fewest_servers([(each.kept_for is None, each) for each in found], need.gpus)

    def _may_suffice(self, kind: Kind, others: Ranking) -> bool:
        """Whether they and those in the order do together; told without a look at each."""
        need = kind.need
        if need.at_once:
            return True  # others that are not in the order may do as well
        kept = sum([1 for each in self._views if (each.available_bytes or 0) >= kind.bytes_each])
        if kept >= need.gpus:
            return True
        least = need.least_total_bytes if need.alone else 0
        return bool(others.best(need.gpus - kept, kind.bytes_each, least, kind.profile))
