"""What a policy observes of the GPUs, and when pending jobs are reconsidered.

A daemon samples every GPU once per second. Here a GPU is shown when jobs are pending and it has changed: on a server
with all readings of the window, on a large cluster with its mean activity since its newest attempt became visible.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping

from cotenant.core.gpu import GpuSnapshot
from cotenant.scheduling.placement.policy import Placer
from cotenant.scheduling.placement.snapshot_adapter import reserved_gpus
from cotenant.scheduling.prediction.interference import GpuActivity
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.sim_gpu import SimGpu

MAX_GPUS_WITH_READINGS = 64
"""A larger cluster shows its policy mean activities, not every reading."""


class Observations:
    """Passes changes on to the policy's placer; `wake_at` schedules a decision at a time without other events.

    Attributes:
        next_recheck_s: when pending jobs are reconsidered because of a GPU that changed before; infinite for never.
    """

    def __init__(self, placer: Placer, wake_at: Callable[[float], None], config: SimulationConfig, gpus: int) -> None:
        self._placer = placer
        self._wake_at = wake_at
        self._config = config
        self._reading_s = config.reading_s
        self._with_readings = gpus <= MAX_GPUS_WITH_READINGS
        self._changing: dict[str, SimGpu] = {}  # by UUID: their readings still change
        self._changed: dict[str, SimGpu] = {}  # by UUID: the placer does not know their state
        self._stale: dict[SimGpu, None] = {}  # the placer knows their state, but not their newest activity
        self._wakes: set[float] = set()
        self._wake_is_overdue = False
        self._delays_s = sorted(config.recheck_s)
        # One queue per delay, in the order of time: when, which GPU, and its count of changes if it is still current.
        self._rechecks: list[deque[tuple[float, SimGpu, int]]] = [deque() for _ in self._delays_s]
        self.next_recheck_s = math.inf

    def gpu_changed(self, gpu: SimGpu) -> None:
        """The GPU changed by more than what the placer did itself."""
        self._changed[gpu.device.uuid] = gpu

    def activity_changed(self, gpu: SimGpu, at_s: float) -> None:
        """The activity of the GPU changed; its readings change over the next window."""
        gpu.changed_s = self.next_reading_s(at_s)
        gpu.changes += 1
        if self._with_readings:
            gpu.changing_until_s = gpu.changed_s + self._config.window_s + self._reading_s
            self._changing[gpu.device.uuid] = gpu
        self._schedule_recheck(gpu, at_s)

    def _schedule_recheck(self, gpu: SimGpu, at_s: float, first: int = 0) -> None:
        """Schedule the recheck after the first delay, from index `first` on, that is not over at `at_s`."""
        changed_s, delays_s = gpu.changed_s, self._delays_s
        for index in range(first, len(delays_s)):
            due_s = changed_s + delays_s[index]
            if due_s > at_s:
                self._rechecks[index].append((due_s, gpu, gpu.changes))
                next_s = self.next_recheck_s
                self.next_recheck_s = due_s if due_s < next_s else next_s
                return

    def recheck(self, at_s: float) -> bool:
        """Take the rechecks that are due; False if all of those GPUs have changed again since."""
        is_any_due = False
        stale, delays_s, last = self._stale, self._delays_s, len(self._rechecks) - 1
        # A GPU moves on to the queue of the next delay. Longer delays first, so that each queue stays in time order.
        for index in range(last, -1, -1):
            rechecks = self._rechecks[index]
            while rechecks and rechecks[0][0] <= at_s:
                _, gpu, changes = rechecks.popleft()
                if gpu.changes == changes:
                    is_any_due = True
                    stale[gpu] = None
                    if index < last:
                        due_s = gpu.changed_s + delays_s[index + 1]
                        if due_s > at_s:
                            self._rechecks[index + 1].append((due_s, gpu, changes))
                        else:
                            self._schedule_recheck(gpu, at_s, index + 2)
        next_s = math.inf
        for rechecks in self._rechecks:
            if rechecks and rechecks[0][0] < next_s:
                next_s = rechecks[0][0]
        self.next_recheck_s = next_s
        return is_any_due

    @property
    def is_changing(self) -> bool:
        """Whether the placer may decide differently from one moment to the next without an event."""
        return bool(self._changing) or self._wake_is_overdue

    def wake(self, wakes_s: float | None, at_s: float) -> None:
        """Schedule the decision that the placer wants at `wakes_s`; if that is past, the next event triggers it."""
        self._wake_is_overdue = wakes_s is not None and wakes_s <= at_s
        if wakes_s is not None and wakes_s > at_s and wakes_s not in self._wakes:
            self._wakes.add(wakes_s)
            self._wake_at(wakes_s)

    def look_again_at(self, at_s: float) -> None:
        """Schedule a decision, if jobs wait then."""
        self.wake(at_s, -math.inf)

    def woken(self, at_s: float) -> None:
        """A scheduled decision is due."""
        self._wakes.discard(at_s)

    def update_placer(self, at_s: float) -> None:
        """Pass everything that changed on to the placer."""
        if self._changed:
            for gpu in self._changed.values():
                self._placer.update(self.snapshot(gpu, at_s))
            self._changed.clear()
        if self._with_readings:
            for uuid, gpu in list(self._changing.items()):
                if gpu.changing_until_s < at_s:
                    del self._changing[uuid]
                self._placer.update(self.snapshot(gpu, at_s))
        elif self._stale:
            window_s, set_activity = self._config.window_s, self._placer.set_activity
            for gpu in self._stale:
                if gpu.residents:
                    set_activity(gpu.device.uuid, GpuActivity(None, *gpu.mean_activity(at_s, window_s)))
            self._stale.clear()

    @property
    def reserved(self) -> Mapping[str, int]:
        """For which job the policy reserves GPUs, by UUID."""
        return reserved_gpus(self._placer)

    def snapshot(self, gpu: SimGpu, at_s: float) -> GpuSnapshot:
        """A GPU as its readings show it."""
        return gpu.snapshot(at_s, window_s=self._config.window_s, reading_s=self._reading_s)

    def next_reading_s(self, at_s: float) -> float:
        """The first reading that shows what happens at `at_s`."""
        return math.ceil(at_s / self._reading_s) * self._reading_s
