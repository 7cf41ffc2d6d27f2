"""A trace in numbers: when jobs arrive, how long they run, how many GPUs they want, and how busy they keep them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cotenant.core.stats import mean, quantile
from cotenant.sim.trace import Trace

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
SIZES = ((1, 1), (2, 2), (3, 4), (5, 8), (9, None))
"""Ranges of GPUs of a job; the last is open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Mean, `QUANTILES` and most of a measure; `count` values are known."""

    name: str
    unit: str
    count: int
    mean: float
    quantiles: tuple[float, ...]
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeShare:
    """Jobs that want `low` to `high` GPUs (None: or more), as ratios of all jobs and of all GPU time."""

    low: int
    high: int | None
    jobs: float
    gpu_time: float

    @property
    def text(self) -> str:
        """`1`, `3 to 4`, `9 or more`."""
        if self.high is None:
            return f"{self.low} or more"
        return str(self.low) if self.low == self.high else f"{self.low} to {self.high}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceDescription:
    """What a trace is like.

    Attributes:
        span_s: first to last submission.
        gpu_s: GPU seconds of all jobs, each run alone.
        failed: ratio of jobs that the trace calls failed.
        distributions: inter-arrival times, arrivals in an hour, run times, GPU time, GPUs in demand and, for jobs whose
            activity and memory are known, those. GPUs in demand are what all jobs would hold that had started when
            they were submitted, over time.
    """

    name: str
    jobs: int
    users: int
    span_s: float
    gpu_s: float
    failed: float
    distributions: tuple[Distribution, ...]
    sizes: tuple[SizeShare, ...]


def describe(trace: Trace) -> TraceDescription:
    """The description of `trace`, which has jobs."""
    numbers = range(len(trace))
    submit_s = list(trace.submit_s)
    gpu_s = [trace.duration_s[number] * trace.gpus[number] for number in numbers]
    found = [
        _of("inter-arrival time", "s", [after - before for before, after in itertools.pairwise(submit_s)]),
        _of("jobs submitted in an hour", "jobs", _per_hour(submit_s)),
        _of("run time", "s", list(trace.duration_s)),
        _of("GPUs of a job", "GPUs", [float(count) for count in trace.gpus]),
        _of("GPU time of a job", "s", gpu_s),
        _demand(trace),
    ]
    profiles = [trace.profiles[index] for index in trace.profile_of if index >= 0]
    measures: tuple[tuple[str, str, Callable[[int], float | None]], ...] = (
        ("SM activity of a job alone", "ratio", lambda i: profiles[i].smact),
        ("DRAM activity of a job alone", "ratio", lambda i: profiles[i].drama),
        ("peak memory on each GPU", "GiB", lambda i: profiles[i].peak_bytes / 2**30),
    )
    for name, unit, value in measures:
        known = [read for i in range(len(profiles)) if (read := value(i)) is not None]
        if known:
            found.append(_of(name, unit, known))
    total = sum(gpu_s)
    sizes = []
    for low, high in SIZES:
        members = [n for n in numbers if low <= trace.gpus[n] and (high is None or trace.gpus[n] <= high)]
        if members:
            share = sum(gpu_s[n] for n in members) / total
            sizes.append(SizeShare(low=low, high=high, jobs=len(members) / len(trace), gpu_time=share))
    return TraceDescription(
        name=trace.name,
        jobs=len(trace),
        users=len(trace.users),
        span_s=trace.span_s,
        gpu_s=total,
        failed=sum(map(bool, trace.failed)) / len(trace),
        distributions=tuple(one for one in found if one.count),
        sizes=tuple(sizes),
    )


def _of(name: str, unit: str, values: Sequence[float]) -> Distribution:
    if not values:
        return Distribution(name=name, unit=unit, count=0, mean=0.0, quantiles=(0.0,) * len(QUANTILES), most=0.0)
    ordered = sorted(values)
    return Distribution(
        name=name,
        unit=unit,
        count=len(ordered),
        mean=mean(ordered),
        quantiles=tuple(quantile(ordered, q) for q in QUANTILES),
        most=ordered[-1],
    )


def _per_hour(submit_s: Sequence[float]) -> list[float]:
    counts = [0.0] * (int((submit_s[-1] - submit_s[0]) // 3600) + 1)
    for at_s in submit_s:
        counts[int((at_s - submit_s[0]) // 3600)] += 1
    return counts


def _demand(trace: Trace) -> Distribution:
    """GPUs in demand, weighted by time from the first submission to the last end."""
    changes: list[tuple[float, int]] = []
    for number in range(len(trace)):
        changes.append((trace.submit_s[number], trace.gpus[number]))
        changes.append((trace.submit_s[number] + trace.duration_s[number], -trace.gpus[number]))
    changes.sort()
    held: dict[int, float] = {}
    demanded, before_s = 0, changes[0][0]
    for at_s, change in changes:
        held[demanded] = held.get(demanded, 0.0) + at_s - before_s
        demanded, before_s = demanded + change, at_s
    total_s = sum(held.values())
    levels = sorted(held.items())
    quantiles = []
    for q in QUANTILES:
        passed_s = 0.0
        for level, time_s in levels:
            passed_s += time_s
            if passed_s >= q * total_s:
                quantiles.append(float(level))
                break
    return Distribution(
        name="GPUs in demand",
        unit="GPUs",
        count=len(trace),
        mean=sum(level * time_s for level, time_s in levels) / total_s,
        quantiles=tuple(quantiles),
        most=float(max(level for level, time_s in levels if time_s > 0)),
    )
