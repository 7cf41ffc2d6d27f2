"""The GPUs of a placer: which jobs each admits now, and the order of preference among them."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf as INFINITE  # noqa: N812 -- a constant

from cotenant.core.gpu import GpuSnapshot
from cotenant.scheduling.demand import GpuSizes
from cotenant.scheduling.placement.composition import Composition
from cotenant.scheduling.placement.gpu_index import LINEAR_SCAN_MAX_GPUS, GpuIndex, make_index
from cotenant.scheduling.placement.gpu_view import EXCLUSIVE, SHARED, GpuView, NewResident
from cotenant.scheduling.placement.pending_queue import PendingJob
from cotenant.scheduling.placement.rules import AdmissionRules
from cotenant.scheduling.placement.scores import ACTIVITY_FREE_KEYS
from cotenant.scheduling.prediction.interference import GpuActivity


class GpuPool:
    """The GPUs of a policy, and for each the answers of its admission rules that are the same for every job.

    `linear_scan_max_gpus`: see `gpu_index`; other values are for tests.

    Attributes:
        rules: those of the policy.
        views: in display order; `sizes`: their memory.
        is_timed: whether any is available for a limited time, see `Gpu.available_until_s`.
        needs_rebuild: GPUs were added, or changed their size or end; call `rebuild`.
        shared, exclusive: indexes of the GPUs that admit a job that shares, or one that needs them exclusively. The
            first is not updated for a policy without sharing.
        improved: places of GPUs that may admit more jobs than before.
        changes: the number of changes until now.
        now_s: time of the decision; gates are open or closed as of then.
    """

    def __init__(self, policy: Composition, *, linear_scan_max_gpus: int = LINEAR_SCAN_MAX_GPUS) -> None:
        self._policy = policy
        self._pairing = policy.pairing
        self._rotates = policy.score.rotates
        self._key_may_move = policy.score.key not in ACTIVITY_FREE_KEYS
        self._exclusive_only = policy.exclusive
        self._linear_scan_max_gpus = linear_scan_max_gpus
        self.rules = AdmissionRules(policy.gates, policy.pairing)
        self._gates_open_at_s = self.rules.gates_open_at_s
        self._by_uuid: dict[str, GpuView] = {}
        self._placed: dict[int, Sequence[GpuView]] = {}
        self.timers: list[tuple[float, int]] = []  # when gates open, with the place of the GPU
        self.views: list[GpuView] = []
        self.sizes = GpuSizes()
        self.is_timed = False
        self.needs_rebuild = True
        self.shared: GpuIndex = make_index([], policy.score, policy.pairing)
        self.exclusive: GpuIndex = self.shared
        self.improved: set[int] = set()
        self.changes = 0
        self.now_s = -INFINITE

    # What is observed.

    def update(self, snapshot: GpuSnapshot) -> None:
        """Replace the state of one GPU; a new one is added at the end of the display order."""
        view = self._by_uuid.get(snapshot.gpu.uuid)
        if view is None:
            view = GpuView(snapshot, len(self.views))
            self.views.append(view)
            self._by_uuid[view.uuid] = view
            self.needs_rebuild = True
            return
        gpu, before = snapshot.gpu, view.snapshot.gpu
        if gpu is not before and (
            gpu.memory_total_bytes != before.memory_total_bytes or gpu.available_until_s != before.available_until_s
        ):
            self.needs_rebuild = True
        available, residents, smact = view.available_bytes, view.residents, view.smact
        view.refresh(snapshot)
        worse = view.available_bytes is None or (available is not None and view.available_bytes <= available)
        if worse and view.residents == residents and view.smact == smact:
            self.reindex(view)
        else:
            self.mark_improved(view)

    def release(self, job_id: int) -> None:
        """A job that was assigned here has left its GPUs."""
        for view in self._placed.pop(job_id, ()):
            view.leave(job_id)
            self.mark_improved(view)

    def mark_active(self, job_id: int, at_s: float) -> None:
        """A job that was assigned here used its GPUs for the first time."""
        for view in self._placed.get(job_id, ()):
            view.mark_active(job_id, at_s)
            self._reindex_activity(view)

    def set_activity(self, gpu_uuid: str, activity: GpuActivity) -> None:
        """Set the mean activity of a GPU since its newest resident was first active; it stands in for samples."""
        view = self._by_uuid[gpu_uuid]
        before, view.measured_activity = view.measured_activity, activity
        if self._pairing is None:
            opens_at_s = view.opens_at_s
            if activity == before or self.now_s < opens_at_s < INFINITE:
                return  # nothing new, or a gate is closed whatever the activity: it is looked at when that opens
            is_plain = view.reserved_for is None and bool(view.residents)
            if is_plain and not self._key_may_move and self._gates_open_at_s(view, self.now_s) == opens_at_s:
                self.changes += 1  # as open or closed as before, though for another reason
                return
        self._reindex_activity(view)

    def _reindex_activity(self, view: GpuView) -> None:
        """Its activity is better known: a job may be admitted if a gate opens, or pairing judges it anew."""
        before = view.gpu_class
        self.reindex(view)
        if view.reserved_for is not None or (view.eligible_modes and view.gpu_class != before):
            self.improved.add(view.place)

    # What follows.

    def assign(self, pending: PendingJob, chosen: Sequence[GpuView], promised_bytes: int, at_s: float) -> None:
        """Assign a job to these GPUs and subtract its promise."""
        job, demand_class, pairing = pending.job, pending.demand_class, self._pairing
        job_id, max_slowdown = job.id, job.spec.max_slowdown
        expected = None if job.estimate is None else job.estimate.smact_interval
        for view in chosen:
            resident = NewResident(job_id, promised_bytes, demand_class.sharing, at_s, max_slowdown, expected)
            if pairing is not None:
                pairing.annotate(resident, demand_class.demand.profile)
            view.take(resident)
            self.reindex(view)
            if self._rotates:
                (self.exclusive if demand_class.demand.exclusive else self.shared).taken(view)
        self._placed[job_id] = chosen

    def mark_improved(self, view: GpuView) -> None:
        """It has changed, and a pending job may be admitted now."""
        self.reindex(view)
        self.improved.add(view.place)

    def reindex(self, view: GpuView) -> None:
        """It has changed: run the rules that no demand changes, and update the indexes."""
        self.changes += 1
        if self.needs_rebuild:
            return
        if self._pairing is not None:
            view.gpu_class = self._pairing.gpu_class(view)
        before, now_s, modes = view.eligible_modes, self.now_s, 0
        if view.is_open:
            if not view.residents:
                modes = SHARED | EXCLUSIVE if view.is_empty else SHARED
            else:
                opens_at_s = self._gates_open_at_s(view, now_s)
                if opens_at_s <= now_s:
                    view.opens_at_s = opens_at_s
                    modes = SHARED
                else:
                    self._close(view, opens_at_s)
            if view.reserved_for is not None:
                modes = 0  # indexes answer for every job; the one it is reserved for finds it by its reservation
        view.eligible_modes = modes
        if modes | before:
            if not self._exclusive_only:
                self.shared.update(view, modes & SHARED != 0)
            if (modes | before) & EXCLUSIVE:
                self.exclusive.update(view, modes & EXCLUSIVE != 0)
            if modes & ~before:
                self.improved.add(view.place)

    def _close(self, view: GpuView, opens_at_s: float) -> None:
        """Gates of a GPU are closed: a timer looks at it again when they open."""
        if opens_at_s != view.opens_at_s:
            view.opens_at_s = opens_at_s
            if opens_at_s < INFINITE:
                heappush(self.timers, (opens_at_s, view.place))

    def wake(self, at_s: float) -> None:
        """Look at the GPUs whose gates open until `at_s`."""
        timers = self.timers
        while timers and timers[0][0] <= at_s:
            opens_at_s, place = heappop(timers)
            view = self.views[place]
            if view.reserved_for is not None:
                self.mark_improved(view)
            elif view.opens_at_s == opens_at_s:  # else it was looked at since, and has another timer if it needs one
                self.reindex(view)

    def rebuild(self) -> None:
        """Make new indexes of all GPUs."""
        policy, most = self._policy, self._linear_scan_max_gpus
        self.needs_rebuild = False
        self.sizes = GpuSizes((view.snapshot.gpu for view in self.views), one_node=policy.one_node)
        self.is_timed = any(view.snapshot.gpu.available_until_s is not None for view in self.views)
        self.shared = make_index(self.views, policy.score, policy.pairing, linear_scan_max_gpus=most)
        self.exclusive = make_index(self.views, policy.score, None, linear_scan_max_gpus=most)
        for view in self.views:
            view.eligible_modes = 0
            view.opens_at_s = -INFINITE
            self.mark_improved(view)

    def max_improved_bytes(self) -> tuple[int, int, int]:
        """Most memory available on one of the improved GPUs, for each of `CAPACITY_KINDS`; -1 if there is none."""
        shared = empty = anywhere = -1
        for place in self.improved:
            view = self.views[place]
            available = view.available_bytes or 0
            if view.reserved_for is None and available > anywhere:
                anywhere = available
            if view.eligible_modes & SHARED and available > shared:
                shared = available
            if view.eligible_modes & EXCLUSIVE and available > empty:
                empty = available
        return shared, empty, anywhere
