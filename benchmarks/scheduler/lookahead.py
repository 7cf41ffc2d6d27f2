"""Schedules that look ahead over the jobs that have arrived, none of which moves. For `online_gap`.

Whenever jobs wait and something changed, each rule simulates the jobs that have arrived to their end, once for each of
its orders and least gains, and starts the jobs that the best of these schedules starts now. Best is the least sum of
JCTs, plus `MAKESPAN_WEIGHT` times the time until all are done, plus `EXCEEDED_S` for each job that would exceed its
slowdown bound over its whole run. Memory and speeds are known; later arrivals are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cotenant.core.gpu import GpuSnapshot, ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions
from cotenant.scheduling.placement.snapshot_adapter import place_snapshot
from cotenant.scheduling.prediction.durations import duration_of_runs, unknown_left
from cotenant.scheduling.prediction.interference import GpuActivity
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.speeds import activity_of
from cotenant.sim.interference import Interference, standard
from cotenant.sim.trace import Trace

MAX_JOBS = 4
"""On a GPU."""
MAKESPAN_WEIGHT = 5.0
EXCEEDED_S = 5000.0
CLOSE_S = 1e-6

Kinds = tuple[int, ...]
"""The profiles of the jobs on a GPU, sorted."""

ORDERS: Mapping[str, Callable[[float, float, int], float]] = {
    "due": lambda submit_s, duration_s, gpus: submit_s + 3.0 * duration_s * gpus,
    "longest": lambda _submit_s, duration_s, gpus: -duration_s * gpus,
    "shortest": lambda _submit_s, duration_s, _gpus: duration_s,
    "oldest": lambda submit_s, _duration_s, _gpus: submit_s,
}
"""Keys by submission, expected duration and GPUs, the smallest first."""


class Rule(NamedTuple):
    """What is tried at each decision: every order with every least gain.

    Attributes:
        max_slowdown: of each job in any set that shares a GPU. The bound of the whole run is looser: sets change.
        knows_durations: of all jobs; else by the runs that have ended.
    """

    name: str
    orders: Sequence[str] = tuple(ORDERS)
    min_gains: Sequence[float] = (0.0, 0.3, 0.5)
    max_slowdown: float = 1.6
    knows_durations: bool = False


class _Speeds:
    """Speeds of jobs that share a GPU, by profile."""

    def __init__(self, trace: Trace, gpus: Cluster, world: Interference) -> None:
        slot = gpus.slots[0]
        self.bytes = [profile.peak_bytes for profile in trace.profiles]
        self._activities = [activity_of(profile) for profile in trace.profiles]
        self._capacity_bytes, self._gpu_type, self._world = slot.gpu.memory_total_bytes, slot.gpu_type, world
        self._speeds: dict[Kinds, Sequence[float]] = {(): ()}
        self._joins: dict[tuple[Kinds, int], tuple[float, float] | None] = {}

    def of(self, kinds: Kinds) -> Sequence[float]:
        """Of each of `kinds`."""
        if kinds not in self._speeds:
            activities = [self._activities[kind] for kind in kinds]
            self._speeds[kinds] = self._world.speeds(activities, self._gpu_type, "time-sliced")
        return self._speeds[kinds]

    def join(self, kinds: Kinds, kind: int) -> tuple[float, float] | None:
        """The speed gained if a job joins, and the speed of the slowest then; None if it does not fit."""
        key = (kinds, kind)
        if key not in self._joins:
            needed = sum([self.bytes[member] for member in kinds]) + self.bytes[kind]
            found = None
            if len(kinds) < MAX_JOBS and needed <= self._capacity_bytes:
                after = self.of(tuple(sorted((*kinds, kind))))
                found = (round(sum(after) - sum(self.of(kinds)), 6), min(after))
            self._joins[key] = found
        return self._joins[key]


Start = tuple[int, list[int]]
"""A job and its GPUs, by number."""


@dataclass(slots=True)
class _Server:
    """Which jobs are on which GPUs."""

    trace: Trace
    speeds: _Speeds
    jobs: list[list[int]]
    kinds: list[Kinds] = field(default_factory=list)
    at: dict[int, list[int]] = field(default_factory=dict)

    def copy(self) -> _Server:
        jobs = [[*members] for members in self.jobs]
        return _Server(self.trace, self.speeds, jobs, [*self.kinds], dict(self.at))

    def put(self, number: int, places: list[int]) -> None:
        self.at[number] = places
        for place in places:
            self.jobs[place].append(number)
            self._sort(place)

    def take(self, number: int) -> None:
        for place in self.at.pop(number, []):
            self.jobs[place].remove(number)
            self._sort(place)

    def _sort(self, place: int) -> None:
        profile_of = self.trace.profile_of
        self.jobs[place].sort(key=lambda number: (profile_of[number], number))
        self.kinds[place] = tuple([profile_of[number] for number in self.jobs[place]])

    def rates(self) -> dict[int, float]:
        """Each job's speed on the slowest of its GPUs."""
        found: dict[int, float] = {}
        for members, kinds in zip(self.jobs, self.kinds, strict=True):
            for number, speed in zip(members, self.speeds.of(kinds), strict=True):
                found[number] = min(speed, found.get(number, speed))
        return found

    def start(self, order: Sequence[int], min_gain: float, max_slowdown: float) -> tuple[list[Start], list[int]]:
        """Start jobs in this order, each where most is gained; those started, and those that still wait."""
        started: list[Start] = []
        waiting: list[int] = []
        blocked: dict[tuple[int, int], int] = {}
        for number in order:
            kind, gpus = self.trace.profile_of[number], self.trace.gpus[number]
            if blocked.get((kind, gpus)) != len(started):
                places = self._best(kind, min_gain, max_slowdown)[:gpus]
                if len(places) == gpus:
                    self.put(number, places)
                    started.append((number, places))
                    continue
                blocked[kind, gpus] = len(started)
            waiting.append(number)
        return started, waiting

    def _best(self, kind: int, min_gain: float, max_slowdown: float) -> list[int]:
        found = []
        for place, kinds in enumerate(self.kinds):
            join = self.speeds.join(kinds, kind)
            if join is None or join[1] * max_slowdown < 1.0 - CLOSE_S:
                continue
            if not kinds or join[0] >= min_gain:
                found.append((-join[0], place))
        return [place for _, place in sorted(found)]


class LookaheadPolicy:
    """The policy of a rule for one trace on GPUs that are alike."""

    name = "lookahead"

    def __init__(
        self, trace: Trace, gpus: Cluster, rule: Rule, *, bound: float, world: Interference | None = None
    ) -> None:
        self.trace, self.rule, self.bound = trace, rule, bound
        self.speeds = _Speeds(trace, gpus, world or standard())

    def placer(self, predictions: JobPredictions = NO_PREDICTIONS) -> LookaheadPlacer:  # noqa: ARG002 - it knows more
        """A placer for an empty cluster."""
        return LookaheadPlacer(self)

    def decide(self, queue: Sequence[Job], server: ServerSnapshot) -> list[Placement | Deferral]:
        """One answer per job; `server` must be empty."""
        placer = self.placer()
        placed = place_snapshot(placer, queue, server)
        return [placed.get(job.id) or placer.explain(job.id, server.at_s) for job in queue]


class LookaheadPlacer:
    """Follows what each job has done, and looks ahead at each decision."""

    wakes_at_s: float | None = None

    def __init__(self, policy: LookaheadPolicy) -> None:
        self._policy, self._trace = policy, policy.trace
        self._server = _Server(policy.trace, policy.speeds, [])
        self._uuids: list[str] = []
        self._waiting: dict[int, Job] = {}
        self._worked_s: dict[int, float] = {}
        self._held_s: dict[int, float] = {}
        self._runs_s: dict[int, list[float]] = {}  # durations of ended runs, by profile
        self._ended: list[int] = []
        self._at_s = 0.0

    @property
    def waiting(self) -> int:
        """Number of pending jobs."""
        return len(self._waiting)

    def add(self, job: Job) -> None:
        """Add a pending job."""
        self._waiting[job.id - 1] = job

    def remove(self, job_id: int) -> None:
        """Remove a pending job."""
        self._waiting.pop(job_id - 1, None)

    def update(self, gpu: GpuSnapshot) -> None:
        """Add a GPU; nothing else of it counts."""
        if gpu.gpu.uuid not in self._uuids:
            self._uuids.append(gpu.gpu.uuid)
            self._server.jobs.append([])
            self._server.kinds.append(())

    def release(self, job_id: int) -> None:
        """A job has left its GPUs."""
        self._ended.append(job_id - 1)

    def mark_active(self, job_id: int, at_s: float) -> None:
        """No news."""

    def set_activity(self, gpu_uuid: str, activity: GpuActivity) -> None:
        """No news."""

    def explain(self, job_id: int, at_s: float) -> Deferral:  # noqa: ARG002 - of the protocol
        """No explanation."""
        return Deferral(job_id=job_id, reason="not placed by this schedule")

    def decide(self, at_s: float) -> list[Placement]:
        """Jobs that start now."""
        self._advance(at_s)
        if not self._waiting:
            return []
        rule = self._policy.rule
        waiting = {number: self._left_s(number) for number in self._waiting}
        best: tuple[float, list[Start]] | None = None
        tried = set()
        for name in rule.orders:
            key = ORDERS[name]
            order = sorted(waiting, key=lambda number: (self._key(key, number, waiting[number]), number))
            for min_gain in rule.min_gains:
                if (tuple(order), min_gain) in tried:
                    continue
                tried.add((tuple(order), min_gain))
                found = self._ahead(order, waiting, min_gain)
                if best is None or found[0] < best[0] - CLOSE_S:
                    best = found
        placements = []
        for number, places in best[1] if best else ():
            self._server.put(number, places)
            del self._waiting[number]
            uuids = tuple([self._uuids[place] for place in places])
            promised = self._policy.speeds.bytes[self._trace.profile_of[number]]
            placements.append(
                Placement(job_id=number + 1, gpu_uuids=uuids, sharing="time-sliced", promised_bytes=promised)
            )
        return placements

    def _key(self, order: Callable[[float, float, int], float], number: int, left_s: float) -> float:
        return order(self._trace.submit_s[number], left_s, self._trace.gpus[number])

    def _advance(self, at_s: float) -> None:
        """Note what was done since the last decision, then which jobs have left."""
        passed_s, self._at_s = at_s - self._at_s, at_s
        for number, rate in self._server.rates().items():
            self._worked_s[number] = self._worked_s.get(number, 0.0) + rate * passed_s
            self._held_s[number] = self._held_s.get(number, 0.0) + passed_s
        for number in self._ended:
            self._server.take(number)
            self._runs_s.setdefault(self._trace.profile_of[number], []).append(self._trace.duration_s[number])
        self._ended.clear()

    def _left_s(self, number: int) -> float:
        """Work that a job is expected to have left, at least a second."""
        worked_s = self._worked_s.get(number, 0.0)
        if self._policy.rule.knows_durations:
            return max(1.0, self._trace.duration_s[number] - worked_s)
        whole = duration_of_runs(self._runs_s.get(self._trace.profile_of[number], ()))
        left = unknown_left(worked_s) if whole is None else whole.left(worked_s)
        return max(1.0, left.expected_s)

    def _ahead(self, order: Sequence[int], waiting: Mapping[int, float], min_gain: float) -> tuple[float, list[Start]]:
        """The cost of a schedule of all jobs that have arrived, and what it starts now."""
        max_slowdown, submit_s = self._policy.rule.max_slowdown, self._trace.submit_s
        server = self._server.copy()
        left_s = {number: self._left_s(number) for number in server.at} | dict(waiting)
        whole_s = {number: left + self._worked_s.get(number, 0.0) for number, left in left_s.items()}
        held_s = {number: self._held_s.get(number, 0.0) for number in left_s}
        first, waits = server.start(order, min_gain, max_slowdown)
        now_s, cost_s = self._at_s, 0.0
        while server.at:
            rates = server.rates()
            passed_s = min([left_s[number] / rate for number, rate in rates.items()])
            now_s += passed_s
            ended = []
            for number, rate in rates.items():
                left_s[number] -= rate * passed_s
                held_s[number] += passed_s
                if left_s[number] <= CLOSE_S:
                    ended.append(number)
            for number in ended:
                server.take(number)
                cost_s += now_s - submit_s[number]
                cost_s += EXCEEDED_S * (held_s[number] > self._policy.bound * whole_s[number])
            if waits:
                _, waits = server.start(waits, min_gain, max_slowdown)
        return (math.inf if waits else cost_s + MAKESPAN_WEIGHT * (now_s - self._at_s)), first
