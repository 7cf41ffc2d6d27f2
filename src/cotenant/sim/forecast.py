"""Forecasts when the pending jobs of a daemon start, by simulating its queue and GPUs from now on.

Running jobs stay where they are; the policy decides the rest. The run time of a job is that of completed runs of its
workload, else its time limit, else the caller's assumption.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotenant.core.gpu import Gpu
from cotenant.core.job import Done, Job, Queued, Running, Starting
from cotenant.core.units import MiB, counted
from cotenant.gpus.power_model import power_model
from cotenant.scheduling.demand import demand_bytes
from cotenant.scheduling.placement.policy import Policy
from cotenant.scheduling.placement.snapshot_adapter import make_placer
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.prediction.interference import ASSUMED_SMACT, expected_smact
from cotenant.sim.cluster import Cluster, Slot
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.simulation import Simulation
from cotenant.sim.interference import Interference, standard
from cotenant.sim.interference.model import DEFAULT_GPU
from cotenant.sim.trace import JobProfile, Trace, TraceJob

MIN_REMAINING_S = 60.0
"""A job that exceeded its expected run time is assumed to end after this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedJob:
    """A job and its expected run time; `duration_source` is `history`, `time limit` or `assumed`."""

    job: Job
    duration_s: float
    duration_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastInput:
    """State of a server: its pending jobs, and its placed jobs with their remaining run time."""

    at_s: float
    cluster: Cluster
    waiting: tuple[ExpectedJob, ...]
    placed: tuple[ExpectedJob, ...]
    history: WorkloadHistory


def forecast_input(jobs: Sequence[Job], gpus: Sequence[Gpu], *, at_s: float, assumed_s: float) -> ForecastInput:
    """The state of a daemon at `at_s`; `assumed_s` is the run time of jobs without history and time limit."""
    by_id = {job.id: job for job in jobs}
    history = WorkloadHistory()
    for job in sorted((job for job in jobs if isinstance(job.state, Done)), key=_ended_s):
        history.learn(job, by_id)
    waiting = [_expected(job, history, assumed_s) for job in jobs if isinstance(job.state, Queued)]
    placed = []
    for job in jobs:
        if isinstance(job.state, (Running, Starting)):
            expected = _expected(job, history, assumed_s)
            began_s = job.attempts[-1].started_at_s or job.attempts[-1].placed_at_s
            left_s = max(MIN_REMAINING_S, expected.duration_s - (at_s - began_s))
            placed.append(replace(expected, duration_s=left_s))
    text = f"{counted(len(gpus), 'GPU')} of the daemon"
    slots = tuple(Slot(gpu=gpu, gpu_type=_type_of(gpu), server=0) for gpu in gpus)
    return ForecastInput(
        at_s=at_s,
        cluster=Cluster(text, slots),
        waiting=tuple(sorted(waiting, key=lambda expected: (expected.job.submitted_at_s, expected.job.id))),
        placed=tuple(sorted(placed, key=lambda expected: expected.job.id)),
        history=history,
    )


def with_extra_gpu(found: ForecastInput) -> ForecastInput:
    """The same server with one more GPU like its first."""
    first = found.cluster.slots[0]
    index = 1 + max(slot.gpu.index for slot in found.cluster.slots)
    extra = first._replace(gpu=replace(first.gpu, uuid="ONE-MORE", index=index))
    cluster = Cluster(f"{found.cluster.text} and one more", (*found.cluster.slots, extra))
    return replace(found, cluster=cluster)


def profile_of(job: Job, history: WorkloadHistory) -> JobProfile:
    """The expected memory and activity of `job`."""
    record = history.record(job)
    size = max((record.peaks_bytes if record is not None else ()), default=0) or demand_bytes(job) or 0
    smact = record.smact if record is not None else None
    if smact is None:
        smact = expected_smact(size) if size else ASSUMED_SMACT
    size = size or MiB
    return JobProfile(
        workload=f"{job.spec.name} (job {job.id})",
        first_peak_bytes=size,
        peak_bytes=size,
        smact=smact,
        measured=False,
    )


def _expected(job: Job, history: WorkloadHistory, assumed_s: float) -> ExpectedJob:
    known_s = history.duration_s(job)
    if known_s is not None:
        return ExpectedJob(job=job, duration_s=max(1.0, known_s), duration_source="history")
    if job.spec.time_limit_s is not None:
        return ExpectedJob(job=job, duration_s=job.spec.time_limit_s, duration_source="time limit")
    return ExpectedJob(job=job, duration_s=assumed_s, duration_source="assumed")


def _ended_s(job: Job) -> float:
    return job.state.at_s if isinstance(job.state, Done) else 0.0


def _type_of(gpu: Gpu) -> str:
    """The GPU type in the tables of interference; the default one if it is unknown."""
    from cotenant.gpu_specs import gpu_spec_for_nvml

    known = gpu_spec_for_nvml(gpu.name, gpu.memory_total_bytes)
    name = known.name if known is not None else DEFAULT_GPU
    return f"{name.partition(':')[0]}/{gpu.mig_profile}" if gpu.mig_profile is not None else name


def forecast_starts(
    found: ForecastInput,
    policy: Policy,
    *,
    config: SimulationConfig | None = None,
    interference: Interference | None = None,
) -> dict[int, float | None]:
    """Seconds until each pending job starts, by id; None if it never starts.

    Not modeled: dependencies, quotas, jobs of other daemons, and memory of foreign processes.
    """
    all_jobs = [*found.placed, *found.waiting]
    trace = Trace("queue", (_as_trace_job(expected, found.history) for expected in all_jobs))
    jobs = [_relative_to(expected.job, number + 1, found.at_s) for number, expected in enumerate(all_jobs)]
    simulation = Simulation(
        trace,
        found.cluster,
        make_placer(policy, found.history),
        jobs.__getitem__,
        interference or standard(),
        config=config or SimulationConfig(),
        power_of=power_model,
    )
    for number, expected in enumerate(found.placed):
        simulation.place_running(number, replace(expected.job.attempts[-1].placement, job_id=number + 1))
    simulation.run()
    starts_s = simulation.columns.start_s[len(found.placed) :]
    return {
        expected.job.id: None if math.isnan(start_s) else start_s
        for expected, start_s in zip(found.waiting, starts_s, strict=True)
    }


def _as_trace_job(expected: ExpectedJob, history: WorkloadHistory) -> TraceJob:
    job = expected.job
    return TraceJob(submit_s=0.0, duration_s=expected.duration_s, gpus=job.spec.gpus, profile=profile_of(job, history))


def _relative_to(job: Job, number: int, at_s: float) -> Job:
    """The job with another id and with times relative to `at_s`."""
    since_s = job.state.since_s if isinstance(job.state, Queued) else at_s
    return replace(
        job,
        id=number,
        submitted_at_s=job.submitted_at_s - at_s,
        state=Queued(since_s=since_s - at_s),
        attempts=job.attempts if isinstance(job.state, Queued) else (),
    )
