"""Usage by job, user and workload, and the history of the GPUs, as JSON objects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cotenant.core.job import Attempt, CoRun, Job, ResourceUsage
from cotenant.daemon.api.schemas import CoRunView, GpuHistory, UsageView, UserUsage, WorkloadUsage
from cotenant.gpus.timeseries import TimeSeriesPoint
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.prediction.history import WORKLOAD_SEPARATOR, WorkloadRecord
from cotenant.scheduling.prediction.interference import LearnedInterference
from cotenant.scheduling.prediction.workloads import workload_key
from cotenant.scheduling.recovery import is_forgiven


def usage_of(job: Job, manager: Manager) -> ResourceUsage | None:
    """Usage of all attempts of a job so far; None if none was observed on a GPU."""
    total: ResourceUsage | None = None
    for attempt in job.attempts:
        found = manager.usage(job, attempt.number)
        if found is not None:
            total = found if total is None else total + found
    return total


def billed_usage(attempt: Attempt, usage: ResourceUsage | None) -> ResourceUsage | None:
    """What an attempt's user is billed for it, of the `usage` that was measured.

    One that lost its memory to a neighbor's overrun costs nothing; the neighbor is billed instead (decision 0054).
    """
    bill = None if is_forgiven(attempt) else usage
    for charge in attempt.charges:
        if charge.usage is not None:
            bill = charge.usage if bill is None else bill + charge.usage
    return bill


def usage_view(usage: ResourceUsage | None) -> UsageView | None:
    """Sums and means of `usage`; None if nothing was observed."""
    return None if usage is None else _usage_view(usage)


def _usage_view(usage: ResourceUsage) -> UsageView:
    return {
        "gpu_s": usage.gpu_s,
        "gpu_share_s": usage.gpu_share_s,
        "mean_bytes": None if usage.mean_bytes is None else int(usage.mean_bytes),
        "smact": usage.smact,
        "power_w": usage.power_w,
        "energy_j": usage.energy_j if usage.metered_s else None,
        "idle_energy_j": usage.idle_energy_j if usage.metered_s else None,
        "metered_s": usage.metered_s,
    }


def co_run_view(co_run: CoRun) -> CoRunView:
    """A co-run without its neighbors, which not everybody may see."""
    return {
        "seconds": co_run.seconds,
        "smact": co_run.smact,
        "steps_hz": co_run.steps_hz,
        "slowdown": co_run.slowdown,
    }


@dataclass(slots=True)
class _User:
    jobs: int
    usage: ResourceUsage


def by_user(jobs: Iterable[Job], manager: Manager) -> list[UserUsage]:
    """Sums of what users are billed for `jobs`, sorted by name."""
    found: dict[str, _User] = {}
    for job in jobs:
        billed = (billed_usage(attempt, manager.usage(job, attempt.number)) for attempt in job.attempts)
        bills = [bill for bill in billed if bill is not None]
        if not bills:
            continue
        user = found.setdefault(job.spec.user, _User(0, ResourceUsage()))
        user.jobs += 1
        for bill in bills:
            user.usage += bill
    return [{"user": name, "jobs": user.jobs, **_usage_view(user.usage)} for name, user in sorted(found.items())]


def ended_by_user(jobs: Iterable[Job]) -> dict[str, ResourceUsage]:
    """Sums of what users are billed for ended attempts. They never decrease, over restarts too."""
    found: dict[str, ResourceUsage] = {}
    for job in jobs:
        for attempt in job.attempts:
            bill = billed_usage(attempt, attempt.usage)
            if bill is not None:
                found[job.spec.user] = found.get(job.spec.user, ResourceUsage()) + bill
    return found


def by_workload(jobs: Iterable[Job], manager: Manager) -> list[WorkloadUsage]:
    """What is known of each workload among `jobs`, the newest last."""
    records, interference = manager.history.records(), manager.history.interference
    keys: dict[str, None] = {}
    for job in jobs:
        key = workload_key(job.spec)
        keys.pop(key, None)
        keys[key] = None
    return [_workload(key, records[key], interference) for key in keys if key in records]


def _workload(key: str, record: WorkloadRecord, interference: LearnedInterference) -> WorkloadUsage:
    victim, aggressor = interference.effects(key)
    return {
        "workload": key,
        "runs": len(record.durations_s),
        "need_bytes": record.known_bytes(),
        "is_certain": record.is_sure(),
        "min_bytes": record.least_bytes or None,
        "duration_s": sorted(record.durations_s)[len(record.durations_s) // 2] if record.durations_s else None,
        "solo_s": record.solo_s,
        "smact": record.smact,
        "drama": record.drama,
        "steps_hz": record.steps_hz,
        "sensitivity": None if victim is None else math.exp(victim),
        "aggressiveness": None if aggressor is None else math.exp(aggressor),
        "co_runs": [
            {
                "workloads": neighbors.split(WORKLOAD_SEPARATOR),
                "seconds": seconds,
                "steps_hz": steps_hz,
                "slowdown": slowdown,
            }
            for neighbors, (seconds, steps_hz, slowdown) in record.beside.items()
        ],
    }


def history_view(points: Mapping[str, list[TimeSeriesPoint]], gpus: Iterable[Any]) -> list[GpuHistory]:
    """The history of the GPUs, in display order."""
    return [
        {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "memory_total_bytes": gpu.memory_total_bytes,
            "points": [point._asdict() for point in points.get(gpu.uuid, ())],
        }
        for gpu in gpus
    ]
