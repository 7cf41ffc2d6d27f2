"""Speeds of jobs in a simulated world: asked of the interference model once for each company, then remembered."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.core.gpu import Sharing
from cotenant.sim.engine.gpu_load import NO_LOAD, GpuLoad, gpu_load
from cotenant.sim.engine.sim_gpu import RunningAttempt, SimGpu
from cotenant.sim.interference import Interference, TrueActivity
from cotenant.sim.trace import JobProfile

MAX_CACHED_LOADS = 200_000


class SpeedCache:
    """Answers by (GPU type, sharing, members); members are numbered, since many jobs do the same."""

    def __init__(self, interference: Interference) -> None:
        self._interference = interference
        self._known: dict[tuple[str, Sharing, tuple[int, ...]], GpuLoad] = {}
        self._held_up: dict[tuple[tuple[float, ...], tuple[int, ...]], GpuLoad] = {}
        self._activities: list[TrueActivity] = []
        self._ids: dict[TrueActivity, int] = {}

    def id_of(self, activity: TrueActivity) -> int:
        """Its number here."""
        found = self._ids.get(activity)
        if found is None:
            found = self._ids[activity] = len(self._activities)
            self._activities.append(activity)
        return found

    def __getitem__(self, activity_id: int) -> TrueActivity:
        return self._activities[activity_id]

    def of(self, card: SimGpu) -> GpuLoad:
        """Who is at work on this GPU, in the order of `card.active`, as fast as the model says.

        All speeds are 1 where it is not known of one what it does to a GPU.
        """
        members = card.active
        if not members:
            return NO_LOAD
        sharing = members[0].placement.sharing
        key = (card.gpu_type, sharing, tuple([each.activity_id for each in members]))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MAX_CACHED_LOADS:
                self._known.clear()
            found = self._known[key] = gpu_load([each.activity for each in members], self._ask(card, sharing, key[2]))
        return found

    def held_up(self, card: SimGpu) -> GpuLoad:
        """Who is at work on this GPU at the speeds they have: a gang waits for the slowest of its GPUs."""
        members, model = card.active, card.company
        for each, speed in zip(members, model.speeds, strict=True):
            if each.speed != speed:
                break
        else:
            return model
        key = (tuple([each.speed for each in members]), tuple([each.activity_id for each in members]))
        found = self._held_up.get(key)
        if found is None:
            if len(self._held_up) >= MAX_CACHED_LOADS:
                self._held_up.clear()
            found = self._held_up[key] = gpu_load([each.activity for each in members], key[0])
        return found

    def alone(self, live: RunningAttempt, card: SimGpu) -> float:
        """Speed of an attempt that has this GPU to itself: 1, or less on a MIG instance."""
        if live.activity is None or card.gpu.mig_profile is None:
            return 1.0
        return self._ask(card, "mig", (live.activity_id,))[0]

    def _ask(self, card: SimGpu, sharing: Sharing, ids: Sequence[int]) -> tuple[float, ...]:
        if -1 in ids:
            return (1.0,) * len(ids)
        mode: Sharing = "mig" if card.gpu.mig_profile is not None else sharing
        members = [self._activities[each] for each in ids]
        return tuple([float(each) for each in self._interference.speeds(members, card.gpu_type, mode)])


def activity_of(profile: JobProfile) -> TrueActivity:
    """A profile in the words of the interference model."""
    return TrueActivity(
        workload=profile.workload,
        smact=profile.smact,
        smocc=profile.smocc,
        drama=profile.drama,
        utilization=profile.utilization,
        memory_bytes=profile.peak_bytes,
    )
