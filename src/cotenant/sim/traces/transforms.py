"""Makes traces from traces: assign workloads, select a representative window, repeat, resample, shift arrivals.

All randomness comes from a seed, and `manifest` lists the steps, so a trace can be made again.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.core.fast_constructor import fast_replace
from cotenant.sim.trace import Trace, TraceJob
from cotenant.sim.traces.carma import MeasuredWorkload, measured_a100

NEAREST = 8
SAME_WORK_WITHIN_S = 3600.0
SAME_WORK_FACTOR = 2.0


def assign(trace: Trace, *, seed: int = 0, workloads: Mapping[str, MeasuredWorkload] | None = None) -> Trace:
    """Give a measured workload to every job without a profile; times and GPUs stay.

    The workload is drawn from the `NEAREST` in run time (by ratio), of one GPU for jobs of one GPU and of several for
    others. Jobs of a user within an hour, with equal GPUs and run times within a factor of two, share a workload.
    """
    known = workloads or measured_a100()
    single = _by_time([workload for workload in known.values() if workload.gpus == 1])
    several = _by_time([workload for workload in known.values() if workload.gpus > 1]) or single
    rng = random.Random(seed)  # noqa: S311 - no secret
    latest: dict[tuple[str, int], tuple[float, float, MeasuredWorkload]] = {}

    def jobs() -> Iterator[TraceJob]:
        for job in trace:
            if job.profile is not None:
                yield job
                continue
            key = (job.user, job.gpus)
            last = latest.get(key) if job.user else None
            if last is not None and _same_work(job, last):
                chosen = last[2]
            else:
                chosen = rng.choice(_nearest(single if job.gpus == 1 else several, job.duration_s))
            latest[key] = (job.submit_s, job.duration_s, chosen)
            yield fast_replace(job, profile=chosen.profile, workload="")

    return trace.derived(jobs(), note=f"workloads drawn from {len(known)} measured ones by run time (seed {seed})")


def _by_time(workloads: Sequence[MeasuredWorkload]) -> list[tuple[float, MeasuredWorkload]]:
    return sorted(
        ((math.log(workload.solo_s), workload) for workload in workloads), key=lambda pair: (pair[0], _name(pair[1]))
    )


def _name(measured: MeasuredWorkload) -> str:
    return measured.profile.workload


def _nearest(ordered: Sequence[tuple[float, MeasuredWorkload]], duration_s: float) -> list[MeasuredWorkload]:
    log_s = math.log(duration_s)
    place = bisect.bisect_left(ordered, log_s, key=lambda pair: pair[0])
    around = ordered[max(0, place - NEAREST) : place + NEAREST]
    close = sorted(around, key=lambda pair: abs(pair[0] - log_s))[:NEAREST]
    return [measured for _, measured in close]


def _same_work(job: TraceJob, last: tuple[float, float, MeasuredWorkload]) -> bool:
    at_s, duration_s, _ = last
    ratio = job.duration_s / duration_s
    return job.submit_s - at_s <= SAME_WORK_WITHIN_S and 1 / SAME_WORK_FACTOR <= ratio <= SAME_WORK_FACTOR


def window(trace: Trace, count: int) -> Trace:
    """The `count` consecutive jobs whose distributions are closest to those of the whole trace.

    Raises:
        UsageError: it has fewer jobs.
    """
    if not 0 < count <= len(trace):
        raise UsageError(f"trace `{trace.name}` has {len(trace)} jobs, no window of {count}")
    step = max(1, count // 4)
    starts = range(0, len(trace) - count + 1, step)
    measures = _measures(trace, 0, len(trace))
    best = min(starts, key=lambda start: (_distance(measures, _measures(trace, start, start + count)), start))
    first_s = trace.submit_s[best]
    jobs = [
        fast_replace(trace[number], submit_s=trace.submit_s[number] - first_s) for number in range(best, best + count)
    ]
    return trace.derived(
        jobs, note=f"jobs {best} to {best + count - 1} of {len(trace)}, the most representative window"
    )


Measures = tuple[tuple[list[float], float], ...]


def _measures(trace: Trace, first: int, end: int) -> Measures:
    """Sorted values by which two windows are compared, with weights.

    Run time .35, GPUs .25, gaps between arrivals .20, GPU time .15, gaps over their mean (bursts) .05: the weights of
    AEGIS's trace mapper.
    """
    duration_s = sorted(trace.duration_s[first:end])
    gpus = sorted(float(gpus) for gpus in trace.gpus[first:end])
    gaps = sorted(trace.submit_s[number + 1] - trace.submit_s[number] for number in range(first, end - 1)) or [0.0]
    service = sorted(trace.duration_s[number] * trace.gpus[number] for number in range(first, end))
    mean = sum(gaps) / len(gaps) or 1.0
    bursts = [gap / mean for gap in gaps]
    return ((duration_s, 0.35), (gpus, 0.25), (gaps, 0.20), (service, 0.15), (bursts, 0.05))


def _distance(whole: Measures, part: Measures) -> float:
    return sum(weight * ks_distance(mine, theirs) for (mine, weight), (theirs, _) in zip(whole, part, strict=True))


def ks_distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Kolmogorov-Smirnov distance of two sorted samples: 0 if equal, 1 if disjoint."""
    worst, count = 0.0, len(second)
    for place, value in enumerate(second):
        below = bisect.bisect_left(first, value) / len(first)
        up_to = bisect.bisect_right(first, value) / len(first)
        worst = max(worst, below - bisect.bisect_left(second, value) / count, (place + 1) / count - up_to)
    return worst


def first_jobs(trace: Trace, count: int) -> Trace:
    """The first `count` jobs."""
    return trace.derived((trace[number] for number in range(min(count, len(trace)))), note=f"the first {count} jobs")


def of_user(trace: Trace, user: str) -> Trace:
    """The jobs of one user or group, shifted so that the first is submitted at 0.

    Raises:
        UsageError: there are none.
    """
    if user not in trace.users:
        users = ", ".join(sorted(trace.users)[:12])
        hint = f"it has {users}" if users else "it has no users"
        raise UsageError(f"trace `{trace.name}` has no jobs of `{user}`", hint=hint)
    index = trace.users.index(user)
    numbers = [number for number in range(len(trace)) if trace.user_of[number] == index]
    first_s = trace.submit_s[numbers[0]]
    jobs = (fast_replace(trace[number], submit_s=trace.submit_s[number] - first_s) for number in numbers)
    return trace.derived(jobs, name=f"{trace.name}:{user}")


def repeated(trace: Trace, times: int, *, spread_s: float = 60.0, seed: int = 0) -> Trace:
    """Repeat every job `times` times, copies up to `spread_s` later: the same load for a cluster `times` as large."""
    if times < 1:
        raise UsageError(f"`repeat` must be >= 1, got {times}")
    rng = random.Random(seed)  # noqa: S311 - no secret
    moments = [
        (at_s + (spread_s * rng.random() if copy else 0.0), number)
        for number, at_s in enumerate(trace.submit_s)
        for copy in range(times)
    ]
    moments.sort()
    jobs = (fast_replace(trace[number], submit_s=at_s) for at_s, number in moments)
    return trace.derived(jobs, note=f"every job {times} times within {spread_s:g} s (seed {seed})")


def resampled(trace: Trace, *, seed: int, count: int | None = None) -> Trace:
    """One bootstrap: the arrival times of `trace`, with jobs drawn from it with replacement."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    number_of_jobs = count or len(trace)
    if number_of_jobs > len(trace):
        raise UsageError(f"trace `{trace.name}` has {len(trace)} arrivals, fewer than {number_of_jobs}")
    picks = [rng.randrange(len(trace)) for _ in range(number_of_jobs)]
    jobs = (fast_replace(trace[pick], submit_s=trace.submit_s[number]) for number, pick in enumerate(picks))
    return trace.derived(jobs, note=f"jobs drawn with replacement (seed {seed})")


def onto_arrivals(trace: Trace, arrivals_s: Sequence[float], *, seed: int = 0) -> Trace:
    """The jobs of `trace`, cyclically, at these arrival times (ascending, the first 0)."""
    count = len(trace)
    offset = random.Random(seed).randrange(count)  # noqa: S311 - no secret
    jobs = (fast_replace(trace[(offset + place) % count], submit_s=at_s) for place, at_s in enumerate(arrivals_s))
    return trace.derived(jobs, note=f"{len(arrivals_s)} arrivals of another trace (from job {offset}, seed {seed})")


def in_time(trace: Trace, factor: float) -> Trace:
    """Scale all arrival times by `factor`; more than 1 is less load."""
    if not 0 < factor < math.inf:
        raise UsageError(f"the arrival scale must be > 0, got {factor:g}", hint="0.5 doubles the load")
    jobs = (fast_replace(job, submit_s=job.submit_s * factor) for job in trace)
    return trace.derived(jobs, note=f"arrival times scaled by {factor:g}")


def manifest(trace: Trace) -> dict[str, Any]:
    """Description and provenance of a trace, as plain values."""
    count = len(trace)
    return {
        "trace": trace.name,
        "source": trace.source,
        "steps": list(trace.notes),
        "digest": trace.digest(),
        "jobs": count,
        "gpus_mean": sum(trace.gpus) / count if count else None,
        "duration_mean_s": sum(trace.duration_s) / count if count else None,
        "span_s": trace.span_s,
        "work_gpu_s": trace.work_gpu_s,
        "workloads": len(trace.profiles),
    }
