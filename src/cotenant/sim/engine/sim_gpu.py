"""One GPU of a simulated world: who is on it, what it has done so far, and how a policy sees it."""

from __future__ import annotations

import math
from collections.abc import Callable

from cotenant.core.fast_constructor import fast_constructor
from cotenant.core.gpu import GpuSnapshot, Resident
from cotenant.core.job import Job
from cotenant.core.placement import Placement
from cotenant.scheduling.prediction.interference import GpuActivity as Known
from cotenant.sim.cluster import Slot
from cotenant.sim.engine.gpu_load import NO_LOAD, GpuLoad
from cotenant.sim.engine.gpu_totals import GpuMoment, GpuTotals
from cotenant.sim.engine.readings import GpuReadings, Values
from cotenant.sim.interference import TrueActivity
from cotenant.sim.power import PowerModel
from cotenant.sim.trace import JobProfile

_UNKNOWN = Known()

_resident: Callable[..., Resident] = fast_constructor(Resident)
_snapshot: Callable[..., GpuSnapshot] = fast_constructor(GpuSnapshot)

MIN_CO_RUN_S = 10.0
"""What an attempt did for less long says nothing, as in the daemon."""


class RunningAttempt:
    """An attempt that has been placed and has not ended.

    Attributes:
        number: of the job in the trace.
        work_s: what it has to do once its launch delay is over, in seconds alone on the GPUs it has.
        done_s: how much of that is done at `since_s`; since then it runs at `speed`.
        pace: of the slowest GPU it has, over that of the GPUs whose run times the trace has.
        links: part of its speed that is left by the network between its GPUs.
        seen_s: the first reading that shows it, infinity before it works.
        next_s: the work at which something happens next: it grows, or it ends.
        version: of its newest event in the queue; older ones are stale.
        busy: part of the time in which a GPU that it has alone has work.
        known: what a history knows of its work by now; None without a history.
    """

    __slots__ = (
        "active",
        "activity",
        "activity_id",
        "busy",
        "cards",
        "co_run_since_s",
        "company",
        "delay_s",
        "done_s",
        "grown",
        "held_bytes",
        "job",
        "known",
        "links",
        "next_s",
        "number",
        "pace",
        "placed_s",
        "placement",
        "profile",
        "resident",
        "seen_s",
        "since_s",
        "speed",
        "version",
        "work_s",
    )

    def __init__(self, number: int, job: Job, placement: Placement, cards: list[SimGpu], placed_s: float) -> None:
        self.number = number
        self.job = job
        self.placement = placement
        self.cards = cards
        self.placed_s = placed_s
        self.profile: JobProfile | None = None
        self.activity: TrueActivity | None = None
        self.activity_id = -1
        self.busy = 0.0
        self.delay_s = 0.0
        self.work_s = 0.0
        self.done_s = 0.0
        self.since_s = placed_s
        self.speed = 1.0
        self.links = 1.0
        self.pace = 1.0
        self.active = False
        self.seen_s = math.inf
        self.grown = True
        self.next_s = 0.0
        self.held_bytes = 0
        self.version = 0
        self.resident: Resident | None = None
        self.known: Callable[[], Known] | None = None
        self.company: dict[tuple[int, ...], list[float]] = {}  # for a history, see `learner`
        self.co_run_since_s = placed_s

    def seen_as(self, at_s: float) -> Resident:
        """The attempt as the readings up to `at_s` show it."""
        found = self.resident
        known = _UNKNOWN if self.known is None else self.known()
        if known.smact is None and self.known is not None:
            known = known._replace(smact=self._seen_alone(at_s))
        if found is None or (found.first_active_at_s is None and at_s >= self.seen_s) or found.smact != known.smact:
            seen = at_s >= self.seen_s
            found = self.resident = _resident(
                self.job.id,
                len(self.job.attempts) + 1,
                self.placement.promised_bytes,
                self.held_bytes if seen else None,
                self.placement.sharing,
                self.placed_s,
                self.seen_s if seen else None,
                self.job.spec.max_slowdown,
                len(self.cards),
                known.workload,
                known.smact,
            )
        return found

    def _seen_alone(self, at_s: float) -> float | None:
        """SM activity while it had its first GPU to itself, if it did so for long enough."""
        sums = self.company.get((self.job.id,))
        seconds, smact_s = (sums[0], sums[1]) if sums is not None else (0.0, 0.0)
        if self.active and len(self.cards[0].active) == 1:
            seconds += at_s - self.co_run_since_s
            smact_s += self.cards[0].smact * (at_s - self.co_run_since_s)
        return round(smact_s / seconds, 2) if seconds >= MIN_CO_RUN_S else None


class SimGpu:
    """A GPU during a run. `advance` is called before anything of it changes, `settle` after it."""

    __slots__ = (
        "_idle_w",
        "_power",
        "_readings",
        "_waiting_w",
        "active",
        "active_s",
        "at_work",
        "busy_s",
        "company",
        "down",
        "drama",
        "drama_s",
        "energy_j",
        "gpu",
        "gpu_type",
        "held_bytes",
        "memory_byte_s",
        "moments",
        "moved_s",
        "moves",
        "moving_until_s",
        "power_w",
        "residents",
        "server",
        "shared_s",
        "since_s",
        "smact",
        "smact_s",
        "smocc",
        "smocc_s",
        "total_bytes",
    )

    def __init__(self, slot: Slot, power: PowerModel, *, record: bool) -> None:
        self.gpu = slot.gpu
        self.gpu_type = slot.gpu_type
        self.server = slot.server
        self.total_bytes = slot.gpu.memory_total_bytes
        self.residents: list[RunningAttempt] = []
        self.active: list[RunningAttempt] = []
        self.company: GpuLoad = NO_LOAD  # `active`, at the speeds of the model
        self.at_work: GpuLoad = NO_LOAD  # the same; slower where a gang waits for another of its GPUs
        self.down = False
        self.since_s = 0.0
        self.held_bytes = 0
        self.smact = self.smocc = self.drama = 0.0
        self._power = power
        self._waiting_w = power.watts(1, 0.0)
        self.power_w = self._idle_w = power.watts(0, 0.0)
        self.busy_s = self.active_s = self.shared_s = 0.0
        self.memory_byte_s = self.smact_s = self.smocc_s = self.drama_s = self.energy_j = 0.0
        self.moving_until_s = -math.inf
        self.moved_s = 0.0  # first reading that shows its newest change; `moves` counts the changes
        self.moves = 0
        self._readings = GpuReadings()
        self.moments: list[GpuMoment] | None = [GpuMoment(0.0, 0, 0, 0.0, self.power_w)] if record else None

    def advance(self, at_s: float) -> None:
        """Add what happened since the last call."""
        passed_s = at_s - self.since_s
        if passed_s <= 0.0:
            return
        self.since_s = at_s
        residents = len(self.residents)
        if residents:
            self.busy_s += passed_s
            if residents > 1:
                self.shared_s += passed_s
            if self.active:
                self.active_s += passed_s
                self.memory_byte_s += self.held_bytes * passed_s
                self.smact_s += self.smact * passed_s
                self.smocc_s += self.smocc * passed_s
                self.drama_s += self.drama * passed_s
        self.energy_j += self.power_w * passed_s

    def settle(self, at_s: float) -> None:
        """Work out activity and power from who is at work now, after `advance` and the change of `make_placer`."""
        _, self.smact, self.smocc, self.drama, working = self.at_work
        self.power_w = self._power.watts(len(self.residents), working)
        self._readings.note(at_s, self.smact, self.smocc, self.drama)
        if self.moments is not None:
            self.moments.append(GpuMoment(at_s, len(self.residents), self.held_bytes, self.smact, self.power_w))

    def was_alone(self, live: RunningAttempt, at_s: float, held_bytes: int) -> None:
        """Add a whole attempt that had the GPU to itself and ends now."""
        self.advance(live.placed_s)  # idle until then
        active_s = max(0.0, at_s - live.placed_s - live.delay_s)
        activity = live.activity
        smact = activity.smact if activity is not None else 0.0
        self.busy_s += at_s - live.placed_s
        self.active_s += active_s
        self.memory_byte_s += held_bytes * active_s
        self.smact_s += smact * active_s
        if activity is not None:
            self.smocc_s += (activity.smocc or 0.0) * active_s
            self.drama_s += (activity.drama or 0.0) * active_s
        attached_w, working_w = self._waiting_w, self._power.watts(1, live.busy)
        self.energy_j += attached_w * (at_s - live.placed_s - active_s) + working_w * active_s
        self.since_s = at_s
        self.power_w = self._idle_w
        if self.moments is not None:
            self.moments.append(GpuMoment(live.placed_s, 1, 0, 0.0, attached_w))
            self.moments.append(GpuMoment(at_s - active_s, 1, held_bytes, smact, working_w))
            self.moments.append(GpuMoment(at_s, 0, 0, 0.0, self.power_w))

    def totals(self) -> GpuTotals:
        """What it did until the last `advance`."""
        return GpuTotals(
            self.busy_s,
            self.active_s,
            self.shared_s,
            self.memory_byte_s,
            self.smact_s,
            self.smocc_s,
            self.drama_s,
            self.energy_j,
        )

    def snapshot(self, at_s: float, *, window_s: float, reading_s: float) -> GpuSnapshot:
        """The GPU as a policy sees it at `at_s`, with readings of the last `window_s`."""
        return _snapshot(
            self.gpu,
            self._readings.of_window(at_s, window_s, reading_s, used_bytes=self.held_bytes, power_w=self.power_w),
            tuple([each.seen_as(at_s) for each in self.residents]),
            None if self.down else 0,
        )

    def mean_activity(self, at_s: float, window_s: float) -> Values:
        """Mean SMACT, SMOCC and DRAMA since its newest attempt was seen, but not further back than `window_s`."""
        readings = self._readings
        since_s = at_s - window_s
        readings.forget(since_s)
        for each in self.active:
            if since_s < each.seen_s <= at_s:
                since_s = each.seen_s
        if since_s >= at_s or readings.changed_s <= since_s:
            return self.smact, self.smocc, self.drama
        return readings.mean(since_s, at_s)
