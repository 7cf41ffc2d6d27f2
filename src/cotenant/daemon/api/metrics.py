"""What Prometheus is told: GPUs, promises, activity, energy, and the jobs that run.

Only jobs that run have series of their own, so their number is bounded by what fits on the GPUs. What is not known has
no sample; it is never 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from cotenant.core.errors import BackendError, UsageError
from cotenant.core.job import Job, Queued, ResourceUsage, Running
from cotenant.daemon.api.usage_json import ended_by_user
from cotenant.daemon.api.views import JsonViews, counts
from cotenant.scheduling.manager import Manager

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GPU_GAUGES = (
    ("memory_total_bytes", "memory_total_bytes", "memory of the card"),
    ("memory_used_bytes", "used_bytes", "memory in use, whoever holds it"),
    ("memory_promised_bytes", "promised_bytes", "memory set aside for resident jobs"),
    ("memory_foreign_bytes", "foreign_bytes", "memory in use by processes that are not ours"),
    ("memory_available_bytes", "available_bytes", "memory that may still be promised"),
    ("sm_activity_ratio", "smact", "SM activity"),
    ("sm_occupancy_ratio", "smocc", "SM occupancy"),
    ("dram_activity_ratio", "drama", "DRAM activity"),
    ("utilization_ratio", "utilization", "share of time in which any kernel ran; not SM activity"),
    ("power_watts", "power_w", "power draw"),
    ("sample_age_seconds", "sample_age_s", "age of the newest reading; jobs are admitted on fresh ones only"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """What is told at one moment.

    Attributes:
        info: facts that do not change: version, policy, backend.
        jobs: number of jobs by state.
        gpus: views of the GPUs, with their residents, as in `daemon/api/views.py`.
        oldest_wait_s: for how long the job at the head of the queue has waited, or None.
        journal_ok: whether events can be kept.
        jobs_running: of each job that runs: `job`, `name`, `user`, its `usage` so far and its `slowdown`, or None.
        users: what attempts that are over have used, by user.
    """

    info: Mapping[str, str]
    jobs: Mapping[str, int]
    gpus: Sequence[Mapping[str, Any]]
    oldest_wait_s: float | None
    journal_ok: bool
    jobs_running: Sequence[Mapping[str, Any]] = ()
    users: Mapping[str, ResourceUsage] = field(default_factory=dict)


def metrics_snapshot(manager: Manager, *, at_s: float, info: Mapping[str, Any], journal_ok: bool) -> MetricsSnapshot:
    """What is told of `manager` at `at_s`."""
    since_s = [job.state.since_s for job in manager.jobs.values() if isinstance(job.state, Queued)]
    return MetricsSnapshot(
        info={key: str(info[key]) for key in ("version", "policy", "backend")},
        jobs=counts(manager.jobs.values()),
        gpus=JsonViews(manager, at_s).gpus(),
        oldest_wait_s=max(0.0, at_s - min(since_s)) if since_s else None,
        journal_ok=journal_ok,
        jobs_running=[_running(job, manager) for job in manager.jobs.values() if isinstance(job.state, Running)],
        users=ended_by_user(manager.jobs.values()),
    )


def _running(job: Job, manager: Manager) -> dict[str, Any]:
    company = manager.company(job)
    return {
        "job": str(job.id),
        "name": job.spec.name,
        "user": job.spec.user,
        "usage": manager.usage(job, len(job.attempts)),
        "slowdown": None if company is None else company.measured,
    }


class PrometheusCollector(Collector):
    """The series of a picture that is taken when they are asked for."""

    def __init__(self, look: Callable[[], MetricsSnapshot]) -> None:
        self._look = look
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing: otherwise the registry would take a picture before there is one."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All series."""
        picture = self._look()
        yield InfoMetricFamily("cotenant", "the daemon", value=dict(picture.info))
        yield _gauge("journal_writable", "1 while events can be kept", float(picture.journal_ok))
        if picture.oldest_wait_s is not None:
            yield _gauge("queue_oldest_wait_seconds", "since the oldest waiting job was queued", picture.oldest_wait_s)
        jobs = GaugeMetricFamily("cotenant_jobs", "jobs by state", labels=["state"])
        for state, count in sorted(picture.jobs.items()):
            jobs.add_metric([state.lower()], count)
        yield jobs
        yield from self._gpus(picture.gpus)
        yield from self._residents(picture.gpus)
        yield from _running_jobs(picture.jobs_running)
        yield from _users(picture.users)

    def _gpus(self, gpus: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
        for name, key, text in _GPU_GAUGES:
            family = GaugeMetricFamily(f"cotenant_gpu_{name}", text, labels=["gpu", "uuid"])
            for each in gpus:
                if each[key] is not None:
                    family.add_metric(_labels(each), each[key])
            yield family
        energy = CounterMetricFamily(
            "cotenant_gpu_energy_joules", "energy since the driver was loaded", labels=["gpu", "uuid"]
        )
        residents = GaugeMetricFamily("cotenant_gpu_residents", "jobs on the GPU", labels=["gpu", "uuid"])
        for each in gpus:
            if each["energy_j"] is not None:
                energy.add_metric(_labels(each), each["energy_j"])
            residents.add_metric(_labels(each), len(each["residents"]))
        yield energy
        yield residents

    def _residents(self, gpus: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
        labels = ["job", "name", "gpu", "uuid"]
        promised = GaugeMetricFamily("cotenant_job_memory_promised_bytes", "set aside for the job", labels=labels)
        observed = GaugeMetricFamily(
            "cotenant_job_memory_observed_bytes", "most the job was seen to use", labels=labels
        )
        for gpu in gpus:
            for each in gpu["residents"]:
                values = [str(each["job_id"]), str(each["name"]), *_labels(gpu)]
                promised.add_metric(values, each["promised_bytes"])
                if each["observed_bytes"] is not None:
                    observed.add_metric(values, each["observed_bytes"])
        yield promised
        yield observed

    def text(self) -> bytes:
        """All series in Prometheus' text format."""
        return generate_latest(self._registry)

    def listen(self, where: str) -> Callable[[], None]:
        """Serve them on `HOST:PORT` from a thread; what ends it.

        Raises:
            UsageError: `where` is no address.
            BackendError: nobody can listen there.
        """
        host, colon, port = where.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise UsageError(f"`{where}` is no address to listen on", hint="write e.g. 127.0.0.1:9877")
        try:
            server, thread = start_http_server(int(port), addr=host.strip("[]") or "127.0.0.1", registry=self._registry)
        except OSError as error:
            raise BackendError(f"cannot listen on `{where}`: {error.strerror or error}") from error

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join(timeout=5.0)

        return close


def _running_jobs(jobs: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """What each attempt that runs has used; what is not known has no sample."""
    wanted: tuple[tuple[str, str, Callable[[ResourceUsage], float | None]], ...] = (
        ("gpu_seconds", "seconds on GPUs, in this attempt", lambda usage: usage.gpu_s),
        ("energy_joules", "its part of the GPUs' energy", lambda usage: usage.energy_j if usage.metered_s else None),
        ("power_watts", "its part of a GPU's power, mean", lambda usage: usage.power_w),
        ("sm_activity_ratio", "its own SM activity, mean", lambda usage: usage.smact),
    )
    labels = ["job", "name", "user"]
    for name, text, value_of in wanted:
        family = GaugeMetricFamily(f"cotenant_job_{name}", text, labels=labels)
        for job in jobs:
            value = None if job["usage"] is None else value_of(job["usage"])
            if value is not None:
                family.add_metric([job[label] for label in labels], value)
        yield family
    slowdown = GaugeMetricFamily(
        "cotenant_job_slowdown_ratio", "measured step time beside others to alone", labels=labels
    )
    for job in jobs:
        if job["slowdown"] is not None:
            slowdown.add_metric([job[label] for label in labels], job["slowdown"])
    yield slowdown


def _users(users: Mapping[str, ResourceUsage]) -> Iterator[Metric]:
    """Sums over attempts that are over: they are in the journal, so no restart takes anything back."""
    seconds = CounterMetricFamily("cotenant_user_gpu_seconds", "GPU time of attempts that are over", labels=["user"])
    parts = CounterMetricFamily("cotenant_user_gpu_share_seconds", "shared seconds counted in parts", labels=["user"])
    energy = CounterMetricFamily("cotenant_user_energy_joules", "energy of attempts that are over", labels=["user"])
    for user, usage in sorted(users.items()):
        seconds.add_metric([user], usage.gpu_s)
        parts.add_metric([user], usage.gpu_share_s)
        if usage.metered_s:
            energy.add_metric([user], usage.energy_j)
    yield seconds
    yield parts
    yield energy


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"cotenant_{name}", text, value=value)


def _labels(gpu: Mapping[str, Any]) -> list[str]:
    profile = f"/{gpu['mig_profile']}" if gpu["mig_profile"] else ""
    return [f"{gpu['index']}{profile}", gpu["uuid"]]
