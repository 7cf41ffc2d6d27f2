"""Random search for the schedule with the shortest makespan or mean JCT, with full knowledge of the jobs.

A schedule is a priority order of the jobs and a minimum gain. An oracle policy runs it in the simulator; it knows every
job's true peak memory and the true speeds of any set of jobs. At each decision it places the pending jobs by priority,
each on the GPU where the summed speed grows most, if it grows by the minimum gain. The first third of the tried orders
are heuristics with noise, the others mutations of the best so far. The result is not proven optimal; `bounds` limits
how far it can be from the optimum.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cotenant.core.errors import UsageError
from cotenant.core.gpu import GpuSnapshot, ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions, Placer
from cotenant.scheduling.placement.snapshot_adapter import place_snapshot
from cotenant.scheduling.prediction.interference import GpuActivity as PolicyActivity
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.speeds import activity_of
from cotenant.sim.interference import Interference, TrueActivity, standard
from cotenant.sim.simulate import SimulationResult, simulate
from cotenant.sim.trace import Trace

Objective = Literal["makespan", "jct"]

MIN_GAINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
EXPLORE = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best schedule found.

    Attributes:
        tried: number of schedules. improved_at: number of the last improvement, from 1; if near `tried`, try more.
    """

    run: SimulationResult
    value_s: float
    tried: int
    improved_at: int


def best_found(
    trace: Trace,
    cluster: Cluster,
    *,
    tries: int = 80,
    seed: int = 0,
    objective: Objective = "makespan",
    max_slowdown: float = math.inf,
    interference: Interference | None = None,
    config: SimulationConfig | None = None,
) -> SearchResult:
    """The best of `tries` schedules; none slows a job down by more than `max_slowdown`.

    Raises:
        UsageError: jobs have no profile, the trace is empty, or `tries` is 0.
    """
    if not trace.has_profiles:
        raise UsageError(f"trace `{trace.name}` has jobs without activity profiles")
    if tries < 1 or not len(trace):
        raise UsageError(f"a search needs a schedule and a job, got {tries} schedules of {len(trace)} jobs")
    interference = interference or standard()
    rng = random.Random(seed)  # noqa: S311 - no secret
    best: tuple[float, list[float], float, SimulationResult] | None = None
    improved_at = 0
    for number in range(tries):
        if best is None or number < EXPLORE * tries:
            priorities, min_gain = _first_orders(trace, number, rng), rng.choice(MIN_GAINS)
        else:
            priorities, min_gain = _changed(best[1], rng), best[2]
            if rng.random() < 0.2:
                min_gain = rng.choice(MIN_GAINS)
        policy = OraclePolicy(
            trace=trace,
            interference=interference,
            priorities=priorities,
            min_gain=min_gain,
            max_slowdown=max_slowdown,
        )
        run = simulate(trace, cluster, policy, interference=interference, config=config, learn=False)
        value = run.makespan_s if objective == "makespan" else _mean_jct_s(run)
        if best is None or value < best[0]:
            best, improved_at = (value, priorities, min_gain, run), number + 1
    if best is None:
        raise UsageError("no schedule was tried")
    return SearchResult(run=best[3], value_s=best[0], tried=tries, improved_at=improved_at)


def _mean_jct_s(run: SimulationResult) -> float:
    return sum(end - submit for end, submit in zip(run.columns.end_s, run.trace.submit_s, strict=True)) / len(run.trace)


def _first_orders(trace: Trace, number: int, rng: random.Random) -> list[float]:
    """Priorities, smaller first: longest, shortest or oldest job first; later ones with noise."""
    rules: Sequence[Callable[[int], float]] = (
        lambda i: -trace.duration_s[i],
        lambda i: trace.duration_s[i] * trace.gpus[i],
        lambda i: trace.submit_s[i],
    )
    values = [rules[number % 3](i) for i in range(len(trace))]
    ranked = sorted(range(len(trace)), key=values.__getitem__)
    order = [0.0] * len(trace)
    noise = 0.0 if number < len(rules) else rng.choice((0.1, 0.3, 1.0)) * len(trace)
    for place, i in enumerate(ranked):
        order[i] = place + noise * rng.random()
    return order


def _changed(priorities: Sequence[float], rng: random.Random) -> list[float]:
    """The order with up to eight jobs moved."""
    found = list(priorities)
    low, high = min(found), max(found)
    for _ in range(rng.choice((1, 2, 4, 8))):
        found[rng.randrange(len(found))] = rng.uniform(low, high)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OraclePolicy:
    """A policy that knows the true memory and speeds of the jobs of one trace."""

    trace: Trace
    interference: Interference
    priorities: Sequence[float]
    min_gain: float
    max_slowdown: float = math.inf
    name: str = "clairvoyant"

    def placer(self, predictions: JobPredictions = NO_PREDICTIONS) -> Placer:  # noqa: ARG002 - it knows more
        """A placer for an empty cluster."""
        return _OraclePlacer(self)

    def decide(self, queue: Sequence[Job], server: ServerSnapshot) -> list[Placement | Deferral]:
        """One answer per job. `server` must be empty: its residents are not jobs of the trace."""
        placer = self.placer()
        placed = place_snapshot(placer, queue, server)
        return [placed.get(job.id) or placer.explain(job.id, server.at_s) for job in queue]


class _OraclePlacer:
    """Tracks which jobs are on which GPU, by number in the trace."""

    wakes_at_s: float | None = None

    def __init__(self, policy: OraclePolicy) -> None:
        self._policy, self._trace = policy, policy.trace
        self._activities = [activity_of(profile) for profile in policy.trace.profiles]
        self._gpus: dict[str, GpuSnapshot] = {}
        self._members: dict[str, list[int]] = {}
        self._where: dict[int, tuple[str, ...]] = {}
        self._waiting: dict[int, Job] = {}

    def decide(self, at_s: float) -> list[Placement]:  # noqa: ARG002 - it needs no clock
        """Jobs that start now."""
        return list(self._placements())

    @property
    def waiting(self) -> int:
        """Number of pending jobs."""
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """Add a pending job."""
        self._waiting[job.id] = job

    def remove(self, job_id: int) -> None:
        """Remove a pending job."""
        self._waiting.pop(job_id, None)

    def update(self, gpu: GpuSnapshot) -> None:
        """Add or update a GPU."""
        self._gpus[gpu.gpu.uuid] = gpu
        self._members.setdefault(gpu.gpu.uuid, [])

    def release(self, job_id: int) -> None:
        """Remove a job from its GPUs."""
        for uuid in self._where.pop(job_id, ()):
            self._members[uuid].remove(job_id - 1)

    def mark_active(self, job_id: int, at_s: float) -> None:
        """No news."""

    def set_activity(self, gpu_uuid: str, activity: PolicyActivity) -> None:
        """No news."""

    def explain(self, job_id: int, at_s: float) -> Deferral:  # noqa: ARG002 - of the protocol
        """No explanation: the search tries schedules, not reasons."""
        return Deferral(job_id=job_id, reason="not placed by this schedule")

    def _placements(self) -> Iterator[Placement]:
        for job_id in sorted(self._waiting, key=lambda job_id: (self._policy.priorities[job_id - 1], job_id)):
            number = job_id - 1
            wanted = self._trace.gpus[number]
            gains = sorted(self._gains(number), reverse=True)
            if len(gains) < wanted:
                continue
            uuids = tuple(uuid for _, _, uuid in gains[:wanted])
            for uuid in uuids:
                self._members[uuid].append(number)
            self._where[job_id] = uuids
            del self._waiting[job_id]
            promised = self._peak_bytes(number)
            yield Placement(job_id=job_id, gpu_uuids=uuids, sharing="time-sliced", promised_bytes=promised)

    def _gains(self, number: int) -> Iterator[tuple[float, int, str]]:
        """GPUs on which the job fits: gain, negative place in display order, UUID."""
        for place, (uuid, gpu) in enumerate(self._gpus.items()):
            members = self._members[uuid]
            held = sum(self._peak_bytes(member) for member in members)
            if held + self._peak_bytes(number) > gpu.gpu.memory_total_bytes or gpu.foreign_bytes is None:
                continue
            before = self._speeds(members, gpu)
            after = self._speeds([*members, number], gpu)
            if min(after) * self._policy.max_slowdown < 1.0 - 1e-9:
                continue
            gain = sum(after) - sum(before)
            if not members or gain >= self._policy.min_gain:
                yield round(gain, 6), -place, uuid

    def _speeds(self, members: Sequence[int], gpu: GpuSnapshot) -> Sequence[float]:
        activities: list[TrueActivity] = [self._activities[self._trace.profile_of[member]] for member in members]
        return self._policy.interference.speeds(activities, gpu.gpu.name, "time-sliced") if members else ()

    def _peak_bytes(self, number: int) -> int:
        return self._trace.profiles[self._trace.profile_of[number]].peak_bytes
