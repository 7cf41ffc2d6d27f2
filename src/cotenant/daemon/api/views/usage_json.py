"""Usage by job, user and workload, and the history of the GPUs, as JSON objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cotenant.core.job import Attempt, CoRun, Job, ResourceUsage
from cotenant.daemon.api.schemas.gpu_schemas import GpuHistory
from cotenant.daemon.api.schemas.json_objects import (
    CoRunView,
    DayUsage,
    UsageSum,
    UsageView,
    UserUsage,
    WorkloadUsage,
)
from cotenant.daemon.api.views.job_words import rfc3339
from cotenant.gpus.timeseries import TimeSeriesPoint
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.prediction.interference import LearnedInterference
from cotenant.scheduling.prediction.workload_record import WORKLOAD_SEPARATOR, WorkloadRecord
from cotenant.scheduling.prediction.workloads import workload_key
from cotenant.scheduling.recovery import is_forgiven, ran_out_of_memory


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


def attempt_idle_s(attempt: Attempt, at_s: float) -> float:
    """For how long an attempt has been idle until `at_s`, in all."""
    return attempt.idle_s + (0.0 if attempt.idle_since_s is None else max(0.0, at_s - attempt.idle_since_s))


def current_idle_s(job: Job, at_s: float) -> float | None:
    """For how long a job has held its GPUs and computed nothing; None where it computes."""
    since_s = job.attempts[-1].idle_since_s if job.attempts else None
    return None if since_s is None else max(0.0, at_s - since_s)


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
class _Sum:
    """Bills of attempts. `promised_byte_s`: promises times the seconds in which they held."""

    job_ids: set[int] = field(default_factory=set)
    usage: ResourceUsage = field(default_factory=ResourceUsage)
    promised_byte_s: float = 0.0
    promised_s: float = 0.0
    ooms: int = 0
    idle_gpu_s: float = 0.0

    def add(self, job: Job, attempt: Attempt, measured: ResourceUsage | None, at_s: float) -> None:
        bill = billed_usage(attempt, measured)
        self.ooms += attempt.exit is not None and ran_out_of_memory(attempt.exit)
        self.idle_gpu_s += attempt_idle_s(attempt, at_s) * len(attempt.placement.gpu_uuids)
        if bill is not None:
            self.job_ids.add(job.id)
            self.usage += bill
        if measured is not None:
            self.promised_byte_s += attempt.placement.promised_bytes * measured.gpu_s
            self.promised_s += measured.gpu_s

    def view(self) -> UsageSum:
        promised = self.promised_byte_s / self.promised_s if self.promised_s else None
        return {
            **_usage_view(self.usage),
            "jobs": len(self.job_ids),
            "promised_bytes": None if promised is None else int(promised),
            "ooms": self.ooms,
            "idle_gpu_s": self.idle_gpu_s,
        }


def by_user(jobs: Iterable[Job], manager: Manager, at_s: float) -> list[UserUsage]:
    """Sums of what users are billed for `jobs` until `at_s`, sorted by name."""
    sums = _sums(jobs, manager, at_s, lambda job, _: job.spec.user)
    return [{**total.view(), "user": name} for name, total in sums]


def by_day(jobs: Iterable[Job], manager: Manager, at_s: float) -> list[DayUsage]:
    """Sums over the attempts of `jobs` that ended on the same day, oldest first; running ones count for today."""

    def day(_: Job, attempt: Attempt) -> str:
        return (rfc3339(at_s if attempt.ended_at_s is None else attempt.ended_at_s) or "")[:10]

    return [{**total.view(), "day": name} for name, total in _sums(jobs, manager, at_s, day)]


def _sums(
    jobs: Iterable[Job], manager: Manager, at_s: float, key: Callable[[Job, Attempt], str]
) -> list[tuple[str, _Sum]]:
    """Sums by `key`, sorted; keys without a bill are left out."""
    found: dict[str, _Sum] = {}
    for job in jobs:
        for attempt in job.attempts:
            found.setdefault(key(job, attempt), _Sum()).add(job, attempt, manager.usage(job, attempt.number), at_s)
    return sorted(((name, total) for name, total in found.items() if total.job_ids), key=lambda entry: entry[0])


def ended_by_user(jobs: Iterable[Job]) -> dict[str, ResourceUsage]:
    """Sums of what users are billed for ended attempts. They never decrease, over restarts too."""
    found: dict[str, ResourceUsage] = {}
    for job in jobs:
        for attempt in job.attempts:
            bill = billed_usage(attempt, attempt.usage)
            if bill is not None:
                found[job.spec.user] = found.get(job.spec.user, ResourceUsage()) + bill
    return found


def by_workload(jobs: Iterable[Job], manager: Manager, at_s: float) -> list[WorkloadUsage]:
    """What is known of each workload among `jobs`, the newest last."""
    del at_s
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
