"""Metrics for Prometheus: GPUs, promises, activity, energy, and running jobs.

Only running jobs have series of their own, so the number of series is bounded by what fits on the GPUs. An unknown
value has no sample; it is never 0. `prometheus_client` escapes backslashes, quotes and newlines in labels, and fails on
what UTF-8 cannot hold: names from before they were checked are made `encodable`.
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
from cotenant.core.text import encodable
from cotenant.daemon.api.views.gpu_views import GpuViews
from cotenant.daemon.api.views.job_views import counts
from cotenant.daemon.api.views.usage_json import ended_by_user
from cotenant.scheduling.manager import Manager

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_GPU_GAUGES = (
    ("memory_total_bytes", "memory_total_bytes", "memory of the GPU"),
    ("memory_used_bytes", "used_bytes", "memory in use by any process"),
    ("memory_promised_bytes", "promised_bytes", "memory promised to resident jobs"),
    ("memory_foreign_bytes", "foreign_bytes", "memory in use by processes of no job"),
    ("memory_available_bytes", "available_bytes", "memory that may still be promised"),
    ("sm_activity_ratio", "smact", "SM activity"),
    ("sm_occupancy_ratio", "smocc", "SM occupancy"),
    ("dram_activity_ratio", "drama", "DRAM activity"),
    ("graphics_activity_ratio", "gract", "graphics engine activity: time in which any kernel was resident"),
    ("tensor_activity_ratio", "tensor", "activity of the tensor cores"),
    ("fp32_activity_ratio", "fp32", "activity of the FP32 units"),
    ("pcie_transmit_bytes_per_second", "pcie_tx_bytes_s", "bytes per second over PCIe from the GPU"),
    ("pcie_receive_bytes_per_second", "pcie_rx_bytes_s", "bytes per second over PCIe to the GPU"),
    ("utilization_ratio", "utilization", "fraction of time in which any kernel ran; not SM activity"),
    ("power_watts", "power_w", "power draw"),
    ("sample_age_seconds", "sample_age_s", "age of the newest sample; a stale GPU admits no job"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """The values of one scrape.

    Attributes:
        info: constant labels: version, policy, backend.
        jobs: number of jobs by state.
        gpus: views of the GPUs, with their residents, as in `daemon/api/views/gpu_views.py`.
        oldest_wait_s: waiting time of the job that has waited longest, or None.
        journal_ok: whether the journal can be written.
        jobs_running: for each running job `job`, `name`, `user`, its `usage` so far, and its `slowdown` and the seconds
            for which it has been idle (`idle_s`), or None.
        users: usage of ended attempts, by user.
    """

    info: Mapping[str, str]
    jobs: Mapping[str, int]
    gpus: Sequence[Mapping[str, Any]]
    oldest_wait_s: float | None
    journal_ok: bool
    jobs_running: Sequence[Mapping[str, Any]] = ()
    users: Mapping[str, ResourceUsage] = field(default_factory=dict)


def metrics_snapshot(manager: Manager, *, at_s: float, info: Mapping[str, Any], journal_ok: bool) -> MetricsSnapshot:
    """The values of `manager` at `at_s`."""
    since_s = [job.state.since_s for job in manager.jobs.values() if isinstance(job.state, Queued)]
    return MetricsSnapshot(
        info={key: str(info[key]) for key in ("version", "policy", "backend")},
        jobs=counts(manager.jobs.values()),
        gpus=GpuViews(manager, at_s).gpus(),
        oldest_wait_s=max(0.0, at_s - min(since_s)) if since_s else None,
        journal_ok=journal_ok,
        jobs_running=[_running(job, manager, at_s) for job in manager.jobs.values() if isinstance(job.state, Running)],
        users=ended_by_user(manager.jobs.values()),
    )


def _running(job: Job, manager: Manager, at_s: float) -> dict[str, Any]:
    company = manager.co_run_status(job)
    since_s = job.attempts[-1].idle_since_s
    return {
        "job": str(job.id),
        "name": job.spec.name,
        "user": job.spec.user,
        "usage": manager.usage(job, len(job.attempts)),
        "slowdown": None if company is None else company.measured,
        "idle_s": None if since_s is None else max(0.0, at_s - since_s),
    }


class PrometheusCollector(Collector):
    """Collects a fresh snapshot for every scrape."""

    def __init__(self, look: Callable[[], MetricsSnapshot]) -> None:
        self._look = look
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing: without `describe`, `CollectorRegistry.register` calls `collect` at once."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All series."""
        picture = self._look()
        yield InfoMetricFamily("cotenant", "the daemon", value=dict(picture.info))
        yield _gauge("journal_writable", "1 while the journal can be written", float(picture.journal_ok))
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
            for gpu in gpus:
                if gpu[key] is not None:
                    family.add_metric(_labels(gpu), gpu[key])
            yield family
        energy = CounterMetricFamily(
            "cotenant_gpu_energy_joules", "energy since the driver was loaded", labels=["gpu", "uuid"]
        )
        residents = GaugeMetricFamily("cotenant_gpu_residents", "jobs on the GPU", labels=["gpu", "uuid"])
        for gpu in gpus:
            if gpu["energy_j"] is not None:
                energy.add_metric(_labels(gpu), gpu["energy_j"])
            residents.add_metric(_labels(gpu), len(gpu["residents"]))
        yield energy
        yield residents

    def _residents(self, gpus: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
        labels = ["job", "name", "gpu", "uuid"]
        promised = GaugeMetricFamily("cotenant_job_memory_promised_bytes", "promised to the job", labels=labels)
        observed = GaugeMetricFamily("cotenant_job_memory_observed_bytes", "used by the job", labels=labels)
        for gpu in gpus:
            for resident in gpu["residents"]:
                values = [str(resident["job_id"]), encodable(str(resident["name"])), *_labels(gpu)]
                promised.add_metric(values, resident["promised_bytes"])
                if resident["observed_bytes"] is not None:
                    observed.add_metric(values, resident["observed_bytes"])
        yield promised
        yield observed

    def text(self) -> bytes:
        """All series in Prometheus' text format."""
        return generate_latest(self._registry)

    def listen(self, where: str) -> Callable[[], None]:
        """Serve the metrics on `HOST:PORT` from a thread; returns a function that stops it.

        Raises:
            UsageError: `where` is no address.
            BackendError: the address cannot be bound.
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
    """Usage of running attempts."""
    wanted: tuple[tuple[str, str, Callable[[ResourceUsage], float | None]], ...] = (
        ("gpu_seconds", "seconds on GPUs, in this attempt", lambda usage: usage.gpu_s),
        ("energy_joules", "energy attributed to it", lambda usage: usage.energy_j if usage.metered_s else None),
        ("power_watts", "mean power attributed to it", lambda usage: usage.power_w),
        ("sm_activity_ratio", "mean SM activity of its own", lambda usage: usage.smact),
    )
    labels = ["job", "name", "user"]
    for name, text, value_of in wanted:
        family = GaugeMetricFamily(f"cotenant_job_{name}", text, labels=labels)
        for job in jobs:
            value = None if job["usage"] is None else value_of(job["usage"])
            if value is not None:
                family.add_metric([encodable(job[label]) for label in labels], value)
        yield family
    for name, key, text in (
        ("slowdown_ratio", "slowdown", "measured step time relative to the step time alone"),
        ("idle_seconds", "idle_s", "time for which it has held its GPUs and computed nothing; see [idle]"),
    ):
        family = GaugeMetricFamily(f"cotenant_job_{name}", text, labels=labels)
        for job in jobs:
            if job[key] is not None:
                family.add_metric([encodable(job[label]) for label in labels], job[key])
        yield family


def _users(users: Mapping[str, ResourceUsage]) -> Iterator[Metric]:
    """Sums over ended attempts. They are journaled, so a restart does not decrease the counters."""
    seconds = CounterMetricFamily("cotenant_user_gpu_seconds", "GPU time of ended attempts", labels=["user"])
    parts = CounterMetricFamily(
        "cotenant_user_gpu_share_seconds", "GPU time where a second shared by n attempts counts 1/n", labels=["user"]
    )
    energy = CounterMetricFamily("cotenant_user_energy_joules", "energy of ended attempts", labels=["user"])
    for name, usage in sorted(users.items()):
        user = encodable(name)
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
