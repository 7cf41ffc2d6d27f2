"""Schedules that place all jobs anew at every event, with their durations, memory and speeds known. For `move_limits`.

At every arrival and end, and at least every `PERIOD_S`, a local search maximizes weight x speed over the jobs that have
arrived, from the placement that there is. Its steps: a job goes to other GPUs or waits, and one resident of its new GPU
stays, waits, goes to any other GPU, or takes the job's old one; a gang takes whole GPUs. So two jobs may swap their
GPUs, and a GPU may be emptied for a large job. Later arrivals are not known. A job makes no step for `move_s` after it
has left its GPUs, whether it went to others at once or waited. A placement that costs a job more than what is left of
its slowdown bound is penalized; waiting costs nothing of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.speeds import activity_of
from cotenant.sim.interference import Interference, standard
from cotenant.sim.trace import Trace

PERIOD_S = 600.0
MAX_JOBS = 4
"""On a GPU."""
MAX_ROUNDS = 30
PENALTY = 10.0
"""Weights of a job that would exceed its bound."""
CLOSE_S = 1e-6

Group = frozenset[int]
Groups = tuple[Group, ...]
"""The jobs on each GPU."""


class Rule(NamedTuple):
    """What is maximized.

    Attributes:
        weight: of a job of this number of GPUs that has so many seconds of work left.
        move_s: what a move costs the job; `hysteresis`: what it costs in the objective. Infinite: no job moves.
    """

    name: str
    weight: Callable[[int, float], float] = lambda _gpus, _left_s: 1.0
    move_s: float = 0.0
    hysteresis: float = 0.0


class Outcome(NamedTuple):
    """Of a schedule: `within` is the share of jobs within their slowdown bound, `moves` a count."""

    makespan_s: float
    jct_mean_s: float
    within: float
    moves: int


@dataclass(slots=True)
class _Job:
    """A job: `left_s` of work, `stalled_s` to wait until it goes on, `held_s` of its GPUs so far, and these GPUs."""

    number: int
    gpus: int
    submit_s: float
    duration_s: float
    left_s: float
    stalled_s: float = 0.0
    held_s: float = 0.0
    has_started: bool = False
    at: tuple[int, ...] = ()
    end_s: float = math.nan


class _Speeds:
    """Speeds of the jobs of a trace that share a GPU; None if they do not fit."""

    def __init__(self, trace: Trace, gpus: Cluster, world: Interference) -> None:
        self._kinds = [trace.profile_of[number] for number in range(len(trace))]
        self._activities = [activity_of(profile) for profile in trace.profiles]
        self._bytes = [profile.peak_bytes for profile in trace.profiles]
        self._slot, self._world = gpus.slots[0], world
        self._by_group: dict[Group, Mapping[int, float] | None] = {frozenset(): {}}
        self._by_kinds: dict[tuple[int, ...], Sequence[float]] = {}

    def __call__(self, group: Group) -> Mapping[int, float] | None:
        if group not in self._by_group:
            members = sorted(group, key=lambda number: (self._kinds[number], number))
            kinds = tuple([self._kinds[number] for number in members])
            fits = sum([self._bytes[kind] for kind in kinds]) <= self._slot.gpu.memory_total_bytes
            is_possible = len(members) <= MAX_JOBS and fits
            self._by_group[group] = dict(zip(members, self._of(kinds), strict=True)) if is_possible else None
        return self._by_group[group]

    def _of(self, kinds: tuple[int, ...]) -> Sequence[float]:
        if kinds not in self._by_kinds:
            activities = [self._activities[kind] for kind in kinds]
            self._by_kinds[kinds] = self._world.speeds(activities, self._slot.gpu_type)
        return self._by_kinds[kinds]

    def of_jobs(self, groups: Groups) -> dict[int, float] | None:
        """Each placed job's speed on the slowest of its GPUs; None if a group does not fit."""
        found: dict[int, float] = {}
        for group in groups:
            speeds = self(group)
            if speeds is None:
                return None
            for number, speed in speeds.items():
                found[number] = min(found.get(number, speed), speed)
        return found


def replay(trace: Trace, gpus: Cluster, rule: Rule, bound: float, world: Interference | None = None) -> Outcome:
    """The schedule of a rule. The GPUs must be alike."""
    speeds = _Speeds(trace, gpus, world or standard())
    jobs = [
        _Job(number, trace.gpus[number], trace.submit_s[number], trace.duration_s[number], trace.duration_s[number])
        for number in range(len(trace))
    ]
    at_s, moves = trace.submit_s[0], 0
    while any(math.isnan(job.end_s) for job in jobs):
        active = {job.number: job for job in jobs if job.submit_s <= at_s + CLOSE_S and math.isnan(job.end_s)}
        groups = _Search(active, len(gpus), speeds, rule, bound).best()
        moves += _place(active, groups, rule)
        next_s = min([job.submit_s for job in jobs if job.submit_s > at_s + CLOSE_S], default=math.inf)
        at_s = _run(active, speeds.of_jobs(groups) or {}, at_s, min(next_s, at_s + PERIOD_S))
    return Outcome(
        makespan_s=max(job.end_s for job in jobs) - trace.submit_s[0],
        jct_mean_s=sum(job.end_s - job.submit_s for job in jobs) / len(jobs),
        within=sum(job.held_s <= bound * job.duration_s * (1 + CLOSE_S) for job in jobs) / len(jobs),
        moves=moves,
    )


def _place(active: Mapping[int, _Job], groups: Groups, rule: Rule) -> int:
    """Put the jobs where the search puts them; the number of jobs that go on elsewhere or after a break."""
    moves = 0
    for job in active.values():
        at = tuple(number for number, group in enumerate(groups) if job.number in group)
        if at and at != job.at and job.has_started:
            job.stalled_s += rule.move_s
            moves += 1
        job.at, job.has_started = at, job.has_started or bool(at)
    return moves


def _run(active: Mapping[int, _Job], speeds: Mapping[int, float], at_s: float, until_s: float) -> float:
    """Let the placed jobs work until one of them ends or goes on after a move, at most `until_s`; the time then."""
    placed = [active[number] for number in speeds]
    nexts_s = [job.stalled_s if job.stalled_s > CLOSE_S else job.left_s / speeds[job.number] for job in placed]
    passed_s = max(CLOSE_S, min([until_s - at_s, *nexts_s]))
    for job in placed:
        job.held_s += passed_s
        if job.stalled_s > CLOSE_S:
            job.stalled_s -= passed_s
        else:
            job.left_s -= passed_s * speeds[job.number]
        if job.left_s <= CLOSE_S:
            job.end_s = at_s + passed_s
    return at_s + passed_s


class _Search:
    """The local search at one moment, over the jobs that have arrived and not ended."""

    def __init__(self, active: Mapping[int, _Job], count: int, speeds: _Speeds, rule: Rule, bound: float) -> None:
        self._active, self._speeds, self._rule, self._bound = active, speeds, rule, bound
        self._weights = {number: rule.weight(job.gpus, job.left_s) for number, job in active.items()}
        self._now = tuple(frozenset(job.number for job in active.values() if place in job.at) for place in range(count))

    def best(self) -> Groups:
        """The best placement found."""
        groups, value = self._now, self._value(self._now)
        order = sorted(self._active, key=lambda number: -self._weights[number])
        for _ in range(MAX_ROUNDS):
            before = value
            for number in order:
                for changed in self._steps(self._active[number], groups):
                    found = self._value(changed)
                    if found > value + CLOSE_S:
                        groups, value = changed, found
            if value == before:
                break
        return groups

    def _value(self, groups: Groups) -> float:
        speeds = self._speeds.of_jobs(groups)
        if speeds is None:
            return -math.inf
        value = 0.0
        for number, job in self._active.items():
            at = tuple(place for place, group in enumerate(groups) if number in group)
            if at and len(at) != job.gpus:
                return -math.inf
            if job.at and at != job.at:
                value -= self._rule.hysteresis
            if at:
                value += self._weights[number] * (speeds[number] - PENALTY * self._exceeds(job, speeds[number]))
        return value

    def _exceeds(self, job: _Job, speed: float) -> bool:
        """Whether so slow a time until the next look costs it more than its bound leaves."""
        if speed > 1.0 - CLOSE_S:
            return False
        spare_s = self._bound * job.duration_s - job.held_s - job.left_s - job.stalled_s
        return min(job.left_s / speed, PERIOD_S) * (1.0 - speed) > max(0.0, spare_s) + CLOSE_S

    def _steps(self, job: _Job, groups: Groups) -> Iterator[Groups]:
        number = job.number
        without = tuple(group - {number} for group in groups)
        here = tuple(place for place, group in enumerate(groups) if number in group)
        if here:
            yield without
        for places in itertools.combinations(range(len(groups)), job.gpus):
            if places == here:
                continue
            joined = tuple(group | {number} if place in places else group for place, group in enumerate(without))
            yield joined
            if job.gpus > 1:
                leave = frozenset().union(*[groups[place] for place in places]) - {number}
                yield tuple(group - leave for group in joined)
                continue
            for other in groups[places[0]] - {number}:
                left = tuple(group - {other} for group in joined)
                yield left
                if self._active[other].gpus == 1:
                    for place in range(len(groups)):
                        if place != places[0]:
                            yield tuple(group | {other} if at == place else group for at, group in enumerate(left))
