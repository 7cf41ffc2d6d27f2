"""One GPU of a simulation: its attempts, its use so far, and the snapshot that a policy gets."""

from __future__ import annotations

import math
from collections.abc import Callable

from cotenant.core.fast_constructor import fast_constructor
from cotenant.core.gpu import GpuSnapshot
from cotenant.gpus.power_model import PowerModel
from cotenant.sim.cluster import Slot
from cotenant.sim.engine.readings import Activity, GpuReadings
from cotenant.sim.engine.records import GpuMoment, GpuRun, GpuTotals
from cotenant.sim.engine.running_attempt import RunningAttempt
from cotenant.sim.engine.speeds import NO_LOAD, GpuLoad

_snapshot: Callable[..., GpuSnapshot] = fast_constructor(GpuSnapshot)


class SimGpu:
    """A GPU during a run. Call `advance` before anything of it changes and `settle` after it.

    Attributes:
        residents: attempts placed here; `active`: those at work, in the order they began.
        load: of `active` at the speeds of the interference model; `actual_load`: at their actual speeds, which are
            lower for a job that waits for another of its GPUs.
        changed_s: first reading that shows its newest change; `changes` counts the changes.
        exists: false for a MIG instance that is in no layout now: it is down, and takes no power.
        changing_until_s: its readings change until then, though nothing else happens.
    """

    __slots__ = (
        "_attached_w",
        "_idle_w",
        "_power",
        "_readings",
        "active",
        "active_s",
        "actual_load",
        "busy_s",
        "changed_s",
        "changes",
        "changing_until_s",
        "device",
        "drama",
        "drama_s",
        "energy_j",
        "exists",
        "gpu_type",
        "held_bytes",
        "is_down",
        "load",
        "memory_byte_s",
        "moments",
        "power_w",
        "residents",
        "runs",
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
        self.device = slot.gpu
        self.gpu_type = slot.gpu_type
        self.server = slot.server
        self.total_bytes = slot.gpu.memory_total_bytes
        self.residents: list[RunningAttempt] = []
        self.active: list[RunningAttempt] = []
        self.load: GpuLoad = NO_LOAD
        self.actual_load: GpuLoad = NO_LOAD
        self.is_down = False
        self.exists = True
        self.since_s = 0.0
        self.held_bytes = 0
        self.smact = self.smocc = self.drama = 0.0
        self._power = power
        self._attached_w = power.watts(1, 0.0)
        self.power_w = self._idle_w = power.watts(0, 0.0)
        self.busy_s = self.active_s = self.shared_s = 0.0
        self.memory_byte_s = self.smact_s = self.smocc_s = self.drama_s = self.energy_j = 0.0
        self.changing_until_s = -math.inf
        self.changed_s = 0.0
        self.changes = 0
        self._readings = GpuReadings()
        self.moments: list[GpuMoment] | None = [GpuMoment(0.0, 0, 0, 0.0, self.power_w)] if record else None
        self.runs: list[GpuRun] | None = [] if record else None

    def advance(self, at_s: float) -> None:
        """Add the time since the last call to the sums."""
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
        """Set activity and power to those of `actual_load`, after `advance`."""
        _, self.smact, self.smocc, self.drama, busy = self.actual_load
        self.power_w = self._power.watts(len(self.residents), busy)
        self._readings.change(at_s, self.smact, self.smocc, self.drama)
        if self.moments is not None:
            self.moments.append(GpuMoment(at_s, len(self.residents), self.held_bytes, self.smact, self.power_w))

    def set_existing(self, at_s: float, *, exists: bool) -> None:
        """An instance without jobs appears or vanishes."""
        self.advance(at_s)
        self.exists, self.is_down = exists, not exists
        self.power_w = self._idle_w if exists else 0.0

    def add_exclusive_attempt(self, attempt: RunningAttempt, at_s: float, held_bytes: int) -> None:
        """Add the whole of an attempt that had the GPU to itself and ends now."""
        self.advance(attempt.placed_s)  # idle until then
        active_s = max(0.0, at_s - attempt.placed_s - attempt.delay_s)
        activity = attempt.activity
        smact = activity.smact if activity is not None else 0.0
        self.busy_s += at_s - attempt.placed_s
        self.active_s += active_s
        self.memory_byte_s += held_bytes * active_s
        self.smact_s += smact * active_s
        if activity is not None:
            self.smocc_s += (activity.smocc or 0.0) * active_s
            self.drama_s += (activity.drama or 0.0) * active_s
        attached_w, active_w = self._attached_w, self._power.watts(1, attempt.busy)
        self.energy_j += attached_w * (at_s - attempt.placed_s - active_s) + active_w * active_s
        self.since_s = at_s
        self.power_w = self._idle_w
        if self.moments is not None:
            self.moments.append(GpuMoment(attempt.placed_s, 1, 0, 0.0, attached_w))
            self.moments.append(GpuMoment(at_s - active_s, 1, held_bytes, smact, active_w))
            self.moments.append(GpuMoment(at_s, 0, 0, 0.0, self.power_w))

    def record_run(self, attempt: RunningAttempt, at_s: float) -> None:
        """An attempt ends here."""
        if self.runs is not None:
            self.runs.append(GpuRun(attempt.number, attempt.placed_s, at_s, attempt.is_moved))

    def totals(self) -> GpuTotals:
        """Its sums until the last `advance`."""
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
        """The GPU as a policy sees it, with the readings of the last `window_s`."""
        return _snapshot(
            self.device,
            self._readings.window(at_s, window_s, reading_s, used_bytes=self.held_bytes, power_w=self.power_w),
            tuple([attempt.as_resident(at_s) for attempt in self.residents]),
            None if self.is_down else 0,
        )

    def mean_activity(self, at_s: float, window_s: float) -> Activity:
        """Mean activity since its newest attempt became visible, at most over `window_s`."""
        since_s = oldest_s = at_s - window_s
        for attempt in self.active:
            if since_s < attempt.visible_s <= at_s:
                since_s = attempt.visible_s
        return self._readings.mean_since(since_s, at_s, oldest_s)
