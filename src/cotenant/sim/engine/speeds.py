"""Speeds of attempts that share a GPU, and the load they put on it: the interference model, cached per group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cotenant.core.gpu import Sharing
from cotenant.sim.interference import Interference, TrueActivity
from cotenant.sim.trace import JobProfile

if TYPE_CHECKING:
    from cotenant.sim.engine.observations import Observations
    from cotenant.sim.engine.running_attempt import RunningAttempt
    from cotenant.sim.engine.sim_gpu import SimGpu

MAX_CACHED_LOADS = 200_000


class GpuLoad(NamedTuple):
    """Attempts at work on one GPU at certain speeds, and the activity of the GPU.

    Attributes:
        speeds: one per attempt, in the order they began to work.
        smact, smocc, drama: of the GPU, ratios; `busy`: share of time in which it is busy.
    """

    speeds: tuple[float, ...] = ()
    smact: float = 0.0
    smocc: float = 0.0
    drama: float = 0.0
    busy: float = 0.0


NO_LOAD = GpuLoad()


def gpu_load(activities: Sequence[TrueActivity | None], speeds: tuple[float, ...]) -> GpuLoad:
    """The load of attempts at these speeds; an unknown activity (None) counts as none."""
    smact = smocc = drama = 0.0
    for activity, speed in zip(activities, speeds, strict=True):
        if activity is not None:
            smact += activity.smact * speed
            smocc += (activity.smocc or 0.0) * speed
            drama += (activity.drama or 0.0) * speed
    return GpuLoad(speeds, min(1.0, smact), min(1.0, smocc), min(1.0, drama), busy_share(activities))


def busy_share(activities: Iterable[TrueActivity | None]) -> float:
    """Share of time in which a GPU is busy, if each of its jobs is busy independently of the others.

    A job that has no measured utilization is busy for the square root of its SM activity, as the 53 workloads measured
    on an A100 are (rms 0.09).
    """
    idle = 1.0
    for activity in activities:
        if activity is not None:
            share = math.sqrt(activity.smact) if activity.utilization is None else activity.utilization
            idle *= 1.0 - min(1.0, share)
    return 1.0 - idle


class SpeedCache:
    """Loads by (GPU type, sharing, activities). Activities are numbered, since many jobs have the same."""

    def __init__(self, interference: Interference) -> None:
        self._interference = interference
        self._loads: dict[tuple[str, Sharing, tuple[int, ...]], GpuLoad] = {}
        self._actual_loads: dict[tuple[tuple[float, ...], tuple[int, ...]], GpuLoad] = {}
        self._activities: list[TrueActivity] = []
        self._ids: dict[TrueActivity, int] = {}

    def id_of(self, activity: TrueActivity) -> int:
        """The number of an activity."""
        number = self._ids.get(activity)
        if number is None:
            number = self._ids[activity] = len(self._activities)
            self._activities.append(activity)
        return number

    def __getitem__(self, activity_id: int) -> TrueActivity:
        return self._activities[activity_id]

    def load(self, gpu: SimGpu) -> GpuLoad:
        """The load of `gpu.active` at the speeds of the model; all speeds are 1 if one activity is unknown."""
        active = gpu.active
        if not active:
            return NO_LOAD
        sharing = active[0].placement.sharing
        key = (gpu.gpu_type, sharing, tuple([attempt.activity_id for attempt in active]))
        load = self._loads.get(key)
        if load is None:
            if len(self._loads) >= MAX_CACHED_LOADS:
                self._loads.clear()
            speeds = self._speeds(gpu, sharing, key[2])
            load = self._loads[key] = gpu_load([attempt.activity for attempt in active], speeds)
        return load

    def actual_load(self, gpu: SimGpu) -> GpuLoad:
        """The load of `gpu.active` at their actual speeds: a job of several GPUs waits for the slowest of them."""
        active, load = gpu.active, gpu.load
        for attempt, speed in zip(active, load.speeds, strict=True):
            if attempt.speed != speed:
                break
        else:
            return load
        key = (tuple([attempt.speed for attempt in active]), tuple([attempt.activity_id for attempt in active]))
        actual = self._actual_loads.get(key)
        if actual is None:
            if len(self._actual_loads) >= MAX_CACHED_LOADS:
                self._actual_loads.clear()
            actual = self._actual_loads[key] = gpu_load([attempt.activity for attempt in active], key[0])
        return actual

    def solo_speed(self, attempt: RunningAttempt, gpu: SimGpu) -> float:
        """Speed of an attempt that has this GPU to itself: 1, or less on a MIG instance."""
        if attempt.activity is None or gpu.device.mig_profile is None:
            return 1.0
        return self._speeds(gpu, "mig", (attempt.activity_id,))[0]

    def _speeds(self, gpu: SimGpu, sharing: Sharing, ids: Sequence[int]) -> tuple[float, ...]:
        if -1 in ids:
            return (1.0,) * len(ids)
        mode: Sharing = "mig" if gpu.device.mig_profile is not None else sharing
        activities = [self._activities[activity_id] for activity_id in ids]
        return tuple([float(speed) for speed in self._interference.speeds(activities, gpu.gpu_type, mode)])


class SpeedUpdater:
    """Updates the speeds of attempts whose GPUs changed; `schedule(at_s, attempt)` schedules their next milestone."""

    def __init__(
        self, cache: SpeedCache, observations: Observations, schedule: Callable[[float, RunningAttempt], None]
    ) -> None:
        self._cache = cache
        self._observations = observations
        self._schedule = schedule

    def update(self, gpus: Sequence[SimGpu], at_s: float) -> None:
        """Update all attempts on these GPUs, and the other GPUs of those that span several."""
        cache = self._cache
        spanning: dict[RunningAttempt, None] = {}
        for gpu in gpus:
            load = gpu.load = cache.load(gpu)
            for attempt, speed in zip(gpu.active, load.speeds, strict=True):
                if len(attempt.gpus) > 1:
                    spanning[attempt] = None
                elif speed != attempt.speed:
                    self._change(attempt, speed, at_s)
        touched: Iterable[SimGpu] = gpus
        for attempt in spanning:
            speed = _slowest(attempt)
            if speed != attempt.speed:
                self._change(attempt, speed, at_s)
                touched = dict.fromkeys((*touched, *attempt.gpus))
        for gpu in touched:
            gpu.advance(at_s)
            gpu.actual_load = cache.actual_load(gpu) if spanning else gpu.load
            gpu.settle(at_s)
            if gpu.residents:
                self._observations.activity_changed(gpu, at_s)

    def _change(self, attempt: RunningAttempt, speed: float, at_s: float) -> None:
        attempt.done_s += attempt.speed * (at_s - attempt.since_s)
        attempt.since_s = at_s
        attempt.speed = speed
        self.reschedule(attempt, at_s)

    def reschedule(self, attempt: RunningAttempt, at_s: float) -> None:
        """Schedule its milestone at its present speed; its earlier events become stale."""
        attempt.version += 1
        left_s = max(0.0, attempt.milestone_s - attempt.done_s)
        self._schedule(at_s + left_s / attempt.speed, attempt)


def _slowest(attempt: RunningAttempt) -> float:
    """The speed on the slowest of its GPUs, times what the network between them leaves of it."""
    slowest = math.inf
    for gpu in attempt.gpus:
        speeds = gpu.load.speeds
        speed = speeds[0] if len(speeds) == 1 else speeds[gpu.active.index(attempt)]
        slowest = speed if speed < slowest else slowest  # a third of the time of `min`
    return slowest * attempt.network_factor


def activity_of(profile: JobProfile) -> TrueActivity:
    """The activity of a job with this profile."""
    return TrueActivity(
        workload=profile.workload,
        smact=profile.smact,
        smocc=profile.smocc,
        drama=profile.drama,
        utilization=profile.utilization,
        memory_bytes=profile.peak_bytes,
    )
