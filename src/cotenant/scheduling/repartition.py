"""Which empty GPU in MIG mode gets another layout of instances, for the jobs that wait.

A layout is worth the sum of the speeds at which the first waiting jobs would run on it and on all other empty GPUs,
one job to an instance, each speed 0..1 of that alone on the whole GPU. A GPU is repartitioned if the best layout beats
the present one by `min_gain`, and if the gain over the typical run time of the jobs that it serves is `hysteresis`
times the work that the GPU could do while it is repartitioned. One GPU at a time, each at most once in `period_s`.

A job of several GPUs counts as so many jobs: one GPU after the other gets instances for it. Not considered: jobs of
unknown memory, jobs that could join residents on other GPUs, and jobs that are still to come.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from cotenant.core.errors import UsageError
from cotenant.core.gpu import WHOLE_GPU_SLICES, Gpu, GpuSnapshot, mig_slices
from cotenant.core.job import Job
from cotenant.core.mig import (
    InstanceProfile,
    Layout,
    MigDemand,
    MigGpu,
    MigInstance,
    MigPlan,
    assignment,
    by_start,
    layout_texts,
    layouts,
    predicted_speed,
)
from cotenant.core.stats import mean
from cotenant.scheduling.demand import MAX_IDLE_BYTES, demand_bytes
from cotenant.scheduling.placement.composition import Composition
from cotenant.scheduling.placement.policy import Policy
from cotenant.scheduling.prediction.history import WorkloadHistory

MAX_WAITING = 32
"""So many jobs that wait are looked at, in the order of the policy."""
MAX_OTHERS = 64
"""So many other empty GPUs and instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionRule:
    """When an empty GPU is repartitioned. Times are in GPU time.

    Attributes:
        min_gain: in jobs' worth of speed.
        cost_s: how long the GPU runs nothing.
    """

    min_gain: float = 0.3
    hysteresis: float = 2.0
    cost_s: float = 15.0
    period_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("min_gain", "hysteresis", "cost_s", "period_s"):
            value = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise UsageError(f"`{name}` of MIG repartitioning must be >= 0 and finite, got {value:g}")


class RepartitionPlan(NamedTuple):
    """A GPU to repartition: `job_id` is the first job that gets one of the new instances."""

    gpu: MigGpu
    layout: Layout
    job_id: int
    reason: str


class RepartitionPlanner:
    """Finds the repartition that is worth most. `pace`: as in `MovePlanner`."""

    def __init__(self, policy: Policy, rule: RepartitionRule, history: WorkloadHistory, *, pace: float = 1.0) -> None:
        self.rule = rule
        self._order = policy.order if isinstance(policy, Composition) else None
        # Where jobs may not overtake, a layout that does not serve the first one serves none.
        self._strict_order = isinstance(policy, Composition) and not policy.backfill
        self._history = history
        self._pace = pace

    def plan(
        self,
        mig_gpus: Iterable[MigGpu],
        gpus: Sequence[GpuSnapshot],
        waiting: Sequence[Job],
        *,
        excluded: Collection[str] = (),
        vacated_s: Mapping[str, float] = MappingProxyType({}),
    ) -> RepartitionPlan | None:
        """The repartition that is worth most; None if none is worth its cost.

        `gpus`: all GPUs and instances; `excluded`: UUIDs of GPUs that keep their layout for now; `vacated_s` as in
        `candidates`.
        """
        candidates = self.candidates(mig_gpus, gpus, excluded, vacated_s)
        if not candidates or not waiting:
            return None
        jobs = {job.id: job for job in waiting}
        queue = self._queue(waiting, {kind.name: kind.memory_bytes for gpu in candidates for kind in gpu.profiles})
        best: tuple[float, RepartitionPlan] | None = None
        for gpu in candidates if queue else ():
            found = self._best(gpu, gpus, queue, jobs)
            if found is not None and (best is None or found[0] > best[0]):
                best = found
        return None if best is None else best[1]

    def candidates(
        self,
        mig_gpus: Iterable[MigGpu],
        gpus: Sequence[GpuSnapshot],
        excluded: Collection[str] = (),
        vacated_s: Mapping[str, float] = MappingProxyType({}),
    ) -> list[MigGpu]:
        """The GPUs whose layout may change now: those that are empty.

        `vacated_s`: when a job left an instance, by UUID. Processes in a sample from before that were the job's.
        """
        return [gpu for gpu in mig_gpus if gpu.uuid not in excluded and _is_empty(gpu, gpus, vacated_s)]

    def _queue(self, waiting: Sequence[Job], sizes: Mapping[str, int]) -> list[MigDemand]:
        """The demands of the first jobs whose memory is known, one for each of their GPUs; `sizes`: by profile."""
        history, order, largest = self._history, self._order, max(sizes.values(), default=0)
        ordered = sorted(
            waiting, key=lambda job: (job.submitted_at_s, job.id) if order is None else order(job, history)
        )
        found = []
        for job in ordered:
            learned = history.demand_bytes(job)
            needed = demand_bytes(job) if learned is None else max(learned, job.min_memory_bytes)
            if needed is None and self._strict_order:
                break
            if needed is None:
                continue
            activity = history.activity(job)
            measured = {name: history.interference.slice_speed(activity.workload, name) for name in sizes}
            speeds = {name: speed for name, speed in measured.items() if speed is not None}
            # An instance shows some memory in use while it is empty. Only on the largest ones a job may have it all.
            wanted = max(needed, min(needed + MAX_IDLE_BYTES, largest))
            demand = MigDemand(job_id=job.id, bytes=wanted, smact=activity.smact, speeds=speeds)
            found += [demand] * job.spec.gpus
            if len(found) >= MAX_WAITING:
                break
        return found

    def _best(
        self, gpu: MigGpu, gpus: Sequence[GpuSnapshot], queue: Sequence[MigDemand], jobs: Mapping[int, Job]
    ) -> tuple[float, RepartitionPlan] | None:
        """What the best layout of a GPU gains, in seconds of work, and the repartition; None if it is not worth it."""
        rule = self.rule
        others = _other_places(gpu, gpus)
        strict_order = self._strict_order
        now = assignment(queue, (*gpu.layout, *others), strict_order=strict_order)
        best: tuple[MigPlan, Layout] | None = None
        for layout in _layouts(gpu.profiles):
            plan = assignment(queue, (*layout, *others), strict_order=strict_order)
            if best is None or _rank(plan, len(layout)) > _rank(best[0], len(best[1])):
                best = plan, layout
        if best is None:
            return None
        then, layout = best
        served = list(dict.fromkeys(job_id for job_id, place in then.placed if place < len(layout)))
        gain = then.speed - now.speed
        if not served or gain < rule.min_gain or set(layout_texts(layout)) == set(layout_texts(gpu.layout)):
            return None
        here = sum(speed for place, speed in _speeds(then, queue) if place < len(layout))
        run_s = mean([self._run_s(jobs[job_id]) for job_id in served])
        worth_s = gain * run_s - rule.hysteresis * here * rule.cost_s / self._pace
        if worth_s < 0.0:
            return None
        count = "1 waiting job" if len(served) == 1 else f"{len(served)} waiting jobs"
        reason = f"{gain:+.2f} jobs' worth of speed for {count}"
        return worth_s, RepartitionPlan(gpu, by_start(layout), served[0], reason)

    def _run_s(self, job: Job) -> float:
        """Its run time alone, by history; else what an unknown one takes."""
        known_s = self._history.duration_s(job)
        return self._history.assumed_duration_s if known_s is None else known_s


@lru_cache(maxsize=16)
def _layouts(profiles: tuple[InstanceProfile, ...]) -> tuple[Layout, ...]:
    return layouts(profiles)


def _rank(plan: MigPlan, own: int) -> tuple[float, int, int]:
    """Highest speed; then most compute slices left for jobs to come, in as few instances as possible."""
    taken = {place for _, place in plan.placed}
    free = [plan.layout[place].profile.compute for place in range(own) if place not in taken]
    return round(plan.speed, 9), sum(free), -own


def _speeds(plan: MigPlan, queue: Sequence[MigDemand]) -> list[tuple[int, float]]:
    demands = {demand.job_id: demand for demand in queue}
    return [(place, predicted_speed(demands[job_id], plan.layout[place].profile)) for job_id, place in plan.placed]


def _is_empty(gpu: MigGpu, gpus: Sequence[GpuSnapshot], vacated_s: Mapping[str, float]) -> bool:
    """Whether no job and no other process is on any of its instances, as far as samples show.

    An instance that was not sampled, or in which a process holds memory, is not empty.
    """
    if gpu.foreign or gpu.incomplete:
        return False
    own = [snapshot for snapshot in gpus if snapshot.gpu.mig_parent == gpu.uuid]
    return len(own) == len(gpu.layout) and all(
        not snapshot.residents
        and snapshot.available_bytes is not None
        and snapshot.latest is not None
        and (not snapshot.latest.processes or snapshot.latest.at_s <= vacated_s.get(snapshot.gpu.uuid, -math.inf))
        for snapshot in own
    )


def _other_places(gpu: MigGpu, gpus: Sequence[GpuSnapshot]) -> list[MigInstance]:
    """All other empty GPUs and instances that could take a job now."""
    found = [
        MigInstance(profile=_profile_of(snapshot.gpu, snapshot.available_bytes), start=0)
        for snapshot in gpus
        if snapshot.gpu.mig_parent != gpu.uuid and not snapshot.residents and snapshot.available_bytes
    ]
    return found[:MAX_OTHERS]


def _profile_of(gpu: Gpu, available_bytes: int) -> InstanceProfile:
    slices = WHOLE_GPU_SLICES if gpu.mig_profile is None else mig_slices(gpu.mig_profile)
    return InstanceProfile(
        name=gpu.mig_profile or gpu.name,
        memory_bytes=available_bytes,
        compute=slices,
        memory_slices=slices,
        of=WHOLE_GPU_SLICES,
    )


def repartition_planner(
    policy: Policy, rule: RepartitionRule | None, history: WorkloadHistory, *, pace: float = 1.0
) -> RepartitionPlanner | None:
    """The planner of a configuration; None where layouts stay as they are."""
    return None if rule is None else RepartitionPlanner(policy, rule, history, pace=pace)
