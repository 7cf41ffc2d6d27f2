"""The GPUs of a policy at work: what each may take now, and the order in which the policy likes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush

from cotenant.core.gpu import GpuSnapshot
from cotenant.scheduling.placement import gates
from cotenant.scheduling.placement.gpu_index import LINEAR_SCAN_MAX_GPUS, GpuIndex, make_index
from cotenant.scheduling.placement.gpu_view import EMPTY, SHARED, GpuView, NewResident
from cotenant.scheduling.placement.pending_queue import PendingJob
from cotenant.scheduling.placement.rules import Rules
from cotenant.scheduling.prediction.interference import GpuActivity


class GpuPool:
    """`linear_scan_max_gpus`: see `rankings`; other values are for tests.

    Attributes:
        views: in display order; `totals_bytes`: of each, largest first.
        needs_rebuild: GPUs have come, or are of another size, and `rebuild` is to be called.
        shared, empty: those that may take somebody who shares, somebody who is to be alone. The first is not kept up to
            date for a policy under which nobody shares.
        better: places of GPUs that may take somebody now whom they could not take before.
        changes: so many were there.
        now_s: time of the decision; gates are open or closed as of then.
    """

    def __init__(self, rules: Rules, *, linear_scan_max_gpus: int = LINEAR_SCAN_MAX_GPUS) -> None:
        self._rules = rules
        self._match = rules.match
        self._rotates = rules.score.rotates
        self._by_activity = rules.score.style == "key"  # its order may depend on what GPUs do
        self._alone = rules.alone
        self._loop_up_to = linear_scan_max_gpus
        self._gates_open_at_s = gates.all_gates_open_at_s(rules.gates)
        self._by_uuid: dict[str, GpuView] = {}
        self._placed: dict[int, Sequence[GpuView]] = {}
        self.timers: list[tuple[float, int]] = []  # when gates open, with the place of the GPU
        self.views: list[GpuView] = []
        self.totals_bytes: list[int] = []
        self.needs_rebuild = True
        self.shared: GpuIndex = make_index([], rules.score, rules.match)
        self.empty: GpuIndex = self.shared
        self.improved: set[int] = set()
        self.changes = 0
        self.now_s = -math.inf

    # What is told.

    def update(self, gpu: GpuSnapshot) -> None:
        """The truth about one GPU."""
        view = self._by_uuid.get(gpu.gpu.uuid)
        if view is None:
            view = GpuView(gpu, len(self.views))
            self.views.append(view)
            self._by_uuid[view.uuid] = view
            self.needs_rebuild = True
            return
        if view.total_bytes != gpu.gpu.memory_total_bytes:
            self.needs_rebuild = True
        available, residents, smact = view.available_bytes, view.residents, view.smact
        view.refresh(gpu)
        worse = view.available_bytes is None or (available is not None and view.available_bytes <= available)
        if worse and view.residents == residents and view.smact == smact:
            self.reindex(view)
        else:
            self.mark_improved(view)

    def release(self, job_id: int) -> None:
        """A job that was seated has left its GPUs."""
        for view in self._placed.pop(job_id, ()):
            view.leave(job_id)
            self.mark_improved(view)

    def seen(self, job_id: int, at_s: float) -> None:
        """A job that was seated has touched its GPUs for the first time."""
        for view in self._placed.get(job_id, ()):
            view.see(job_id, at_s)
            self._shows_more(view)

    def activity(self, gpu_uuid: str, activity: GpuActivity) -> None:
        """What a GPU was seen to do since its newest resident was at work; stands in for its samples."""
        view = self._by_uuid[gpu_uuid]
        measured_activity, view.measured_activity = view.measured_activity, activity
        if self._match is None:
            opens_at_s = view.opens_at_s
            if activity == measured_activity or self.now_s < opens_at_s < math.inf:
                return  # nothing new, or a gate is closed whatever it does: it is looked at when that opens
            stays = not self._by_activity and view.reserved_for is None and bool(view.residents)
            if stays and self._gates_open_at_s(view) == opens_at_s:
                self.changes += 1  # as open or closed as before, though for another reason
                return
        self._shows_more(view)

    def _shows_more(self, view: GpuView) -> None:
        """Its activity is better known: good for who waits if a gate opens, or a match sees another company there."""
        before = view.gpu_class
        self.reindex(view)
        if view.reserved_for is not None or (view.eligible_modes and view.gpu_class != before):
            self.improved.add(view.place)

    # What follows.

    def assign(self, entry: PendingJob, chosen: Sequence[GpuView], promised_bytes: int, at_s: float) -> None:
        """Count in that a job gets these GPUs."""
        job, kind, match = entry.job, entry.kind, self._match
        job_id, bound = job.id, job.spec.max_slowdown
        for view in chosen:
            mate = NewResident(job_id, promised_bytes, kind.sharing, at_s, bound)
            if match is not None:
                match.annotate(mate, kind.profile)
            view.take(mate)
            self.reindex(view)
            if self._rotates:
                (self.empty if kind.alone else self.shared).taken(view)
        self._placed[job_id] = chosen

    def mark_improved(self, view: GpuView) -> None:
        """It has changed, and somebody who waits may have a chance now."""
        self.reindex(view)
        self.improved.add(view.place)

    def reindex(self, view: GpuView) -> None:
        """It has changed: look again at what it may take."""
        self.changes += 1
        if self.needs_rebuild:
            return
        if self._match is not None:
            view.gpu_class = self._match.gpu_class(view)
        before, filed = view.eligible_modes, 0
        if view.available_bytes is not None and not view.is_closed:
            if not view.residents:
                filed = SHARED | EMPTY if view.is_empty else SHARED
            elif self._is_open(view):
                filed = SHARED
            if view.reserved_for is not None:
                filed = 0
        view.eligible_modes = filed
        if filed | before:
            if not self._alone:
                self.shared.file(view, filed & SHARED != 0)
            if (filed | before) & EMPTY:
                self.empty.file(view, filed & EMPTY != 0)
            if filed & ~before:
                self.improved.add(view.place)

    def _is_open(self, view: GpuView) -> bool:
        """Whether all gates of a GPU with residents are open; it will be looked at again when they will be."""
        opens_at_s = self._gates_open_at_s(view)
        if opens_at_s <= self.now_s:
            view.opens_at_s = opens_at_s
            return True
        if opens_at_s != view.opens_at_s:
            view.opens_at_s = opens_at_s
            if opens_at_s < math.inf:
                heappush(self.timers, (opens_at_s, view.place))
        return False

    def wake(self, at_s: float) -> None:
        """Time has come for gates to open."""
        timers = self.timers
        while timers and timers[0][0] <= at_s:
            opens_at_s, place = heappop(timers)
            view = self.views[place]
            if view.reserved_for is not None:
                self.mark_improved(view)
            elif view.opens_at_s == opens_at_s:  # else it was looked at since, and has another timer if it needs one
                self.reindex(view)

    def rebuild(self) -> None:
        """GPUs have come, or are of another size: orders begin afresh."""
        rules = self._rules
        self.needs_rebuild = False
        self.totals_bytes = sorted((each.total_bytes for each in self.views), reverse=True)
        self.shared = make_index(self.views, rules.score, rules.match, linear_scan_max_gpus=self._loop_up_to)
        self.empty = make_index(self.views, rules.score, None, linear_scan_max_gpus=self._loop_up_to)
        for view in self.views:
            view.eligible_modes = 0
            view.opens_at_s = -math.inf
            self.mark_improved(view)

    def max_improved_bytes(self) -> tuple[int, int, int]:
        """The most that is available on one of those that got better, for each of `waiting.ROOMS`; -1 for none."""
        shared = empty = anywhere = -1
        for place in self.improved:
            view = self.views[place]
            available = view.available_bytes or 0
            if view.reserved_for is None and available > anywhere:
                anywhere = available
            if view.eligible_modes & SHARED and available > shared:
                shared = available
            if view.eligible_modes & EMPTY and available > empty:
                empty = available
        return shared, empty, anywhere
