"""How short a makespan, or a mean JCT, can be when all is known: the best of many schedules that were tried.

A schedule here is a priority order of the jobs and a least gain. It is played in the same world as any policy, by a
scheduler that knows what no policy does: every job's true peak memory, and the true speeds of any company. Whenever
something changes it takes the waiting jobs by priority, each to the GPU where the summed speed grows most, if it grows
by the least gain. The first third of the orders are known rules and random ones, the others changes of the best.
The best found is not proven best; `bounds` says from the other side how far it may be off.
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
    """The best schedule that was tried.

    Attributes:
        tried: how many were. improved_at: at which it was last bettered, from 1; near `tried`, more would help.
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
    """The schedule with the least makespan, or mean JCT, of `tries`; none where a job would be slower than the bound.

    Raises:
        UsageError: jobs have no profile, or there is nothing to try.
    """
    if not trace.has_profiles:
        raise UsageError(f"trace `{trace.name}` does not say what its jobs do to a GPU")
    if tries < 1 or not len(trace):
        raise UsageError(f"{tries} schedules of {len(trace)} jobs: nothing to try")
    interference = interference or standard()
    drawn = random.Random(seed)  # noqa: S311 - no secret
    best: tuple[float, list[float], float, SimulationResult] | None = None
    improved_at = 0
    for number in range(tries):
        if best is None or number < EXPLORE * tries:
            priorities, min_gain = _first_orders(trace, number, drawn), drawn.choice(MIN_GAINS)
        else:
            priorities, min_gain = _changed(best[1], drawn), best[2]
            if drawn.random() < 0.2:
                min_gain = drawn.choice(MIN_GAINS)
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


def _first_orders(trace: Trace, number: int, drawn: random.Random) -> list[float]:
    """Smaller goes first: longest first, shortest first, oldest first, and then anything."""
    rules: Sequence[Callable[[int], float]] = (
        lambda i: -trace.duration_s[i],
        lambda i: trace.duration_s[i] * trace.gpus[i],
        lambda i: trace.submit_s[i],
    )
    values = [rules[number % 3](i) for i in range(len(trace))]
    ranked = sorted(range(len(trace)), key=values.__getitem__)
    order = [0.0] * len(trace)
    noise = 0.0 if number < len(rules) else drawn.choice((0.1, 0.3, 1.0)) * len(trace)
    for place, i in enumerate(ranked):
        order[i] = place + noise * drawn.random()
    return order


def _changed(priorities: Sequence[float], drawn: random.Random) -> list[float]:
    """The order with a few jobs moved."""
    found = list(priorities)
    low, high = min(found), max(found)
    for _ in range(drawn.choice((1, 2, 4, 8))):
        found[drawn.randrange(len(found))] = drawn.uniform(low, high)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class OraclePolicy:
    """A policy that knows the truth about the jobs of one trace."""

    trace: Trace
    interference: Interference
    priorities: Sequence[float]
    min_gain: float
    max_slowdown: float = math.inf
    name: str = "clairvoyant"

    def placer(self, facts: JobPredictions = NO_PREDICTIONS) -> Placer:  # noqa: ARG002 - it knows more
        """It at work."""
        return _OraclePlacer(self)

    def decide(self, queue: Sequence[Job], server: ServerSnapshot) -> list[Placement | Deferral]:
        """One answer a job; residents of `server` are taken for strangers to the trace, so it should be empty."""
        placer = self.placer()
        for gpu in server.gpus:
            placer.update(gpu)
        for job in queue:
            placer.add(job)
        placed: dict[int, Placement | Deferral] = {each.job_id: each for each in placer.decide(server.at_s)}
        return [placed.get(job.id) or placer.explain(job.id, server.at_s) for job in queue]


class _OraclePlacer:
    """Follows the GPUs by the numbers of their jobs."""

    wakes_at_s: float | None = None

    def __init__(self, policy: OraclePolicy) -> None:
        self._policy, self._trace = policy, policy.trace
        self._activities = [activity_of(profile) for profile in policy.trace.profiles]
        self._gpus: dict[str, GpuSnapshot] = {}
        self._members: dict[str, list[int]] = {}
        self._where: dict[int, tuple[str, ...]] = {}
        self._waiting: dict[int, Job] = {}

    def decide(self, at_s: float) -> list[Placement]:  # noqa: ARG002 - it needs no clock
        """Who starts now."""
        return list(self._placements())

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """It waits."""
        self._waiting[job.id] = job

    def remove(self, job_id: int) -> None:
        """It waits no longer."""
        self._waiting.pop(job_id, None)

    def update(self, gpu: GpuSnapshot) -> None:
        """A GPU is there."""
        self._gpus[gpu.gpu.uuid] = gpu
        self._members.setdefault(gpu.gpu.uuid, [])

    def release(self, job_id: int) -> None:
        """It left."""
        for uuid in self._where.pop(job_id, ()):
            self._members[uuid].remove(job_id - 1)

    def seen(self, job_id: int, at_s: float) -> None:
        """No news."""

    def activity(self, gpu_uuid: str, activity: PolicyActivity) -> None:
        """No news."""

    def explain(self, job_id: int, at_s: float) -> Deferral:  # noqa: ARG002 - of the protocol
        """Nothing to say."""
        return Deferral(job_id=job_id, reason="a schedule under trial")

    def _placements(self) -> Iterator[Placement]:
        for job_id in sorted(self._waiting, key=lambda each: (self._policy.priorities[each - 1], each)):
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
        """GPUs that may take the job: gain, place in display order (first is larger), identity."""
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
