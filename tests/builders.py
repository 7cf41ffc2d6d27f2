"""Builders of core types with defaults, so that a test states only what matters; sizes are in GiB."""

from __future__ import annotations

from typing import Any

from cotenant.core.estimate import Estimate
from cotenant.core.gpu import Gpu, GpuSample, GpuSnapshot, Resident, ServerSnapshot
from cotenant.core.job import Job, JobSpec, Queued
from cotenant.core.units import GiB


def a_spec(**changes: Any) -> JobSpec:
    """A spec of a job that prints nothing and succeeds."""
    fields: dict[str, Any] = {
        "command": ("true",),
        "workdir": "/tmp",
        "env": {},
        "user": "ann",
        "uid": 1000,
        "name": "job",
    }
    return JobSpec(**{**fields, **changes})


def an_estimate(gib: float = 8, **changes: Any) -> Estimate:
    """An estimate whose bound is exactly `gib`."""
    fields: dict[str, Any] = {
        "peak_allocated_bytes": None,
        "peak_reserved_bytes": int(gib * GiB),
        "context_bytes": 0,
        "margin_bytes": 0,
        "coverage": 0.99,
        "estimator": "declared",
        "version": "1",
        "gpu": "A100-40GB",
    }
    return Estimate(**{**fields, **changes})


def a_job(job_id: int = 1, gib: float | None = 8, at_s: float = 0.0, **spec: Any) -> Job:
    """A queued job with an estimate of `gib` (None: no estimate)."""
    return Job(
        id=job_id,
        spec=a_spec(**spec),
        submitted_at_s=at_s,
        state=Queued(since_s=at_s),
        estimate=None if gib is None else an_estimate(gib),
    )


def a_gpu(index: int = 0, gib: float = 40) -> Gpu:
    """A GPU of `gib`."""
    return Gpu(uuid=f"GPU-{index}", index=index, name="A100-40GB", memory_total_bytes=int(gib * GiB))


def a_snapshot(
    index: int = 0,
    *,
    gib: float = 40,
    foreign: float | None = 0,
    residents: tuple[Resident, ...] = (),
    at_s: float = 0.0,
    **sample: Any,
) -> GpuSnapshot:
    """A GPU with one sample at `at_s`."""
    used = None if foreign is None else int(foreign * GiB) + sum(resident.observed_bytes or 0 for resident in residents)
    return GpuSnapshot(
        gpu=a_gpu(index, gib),
        samples=(GpuSample(**{"at_s": at_s, "used_bytes": used, "smact": 0.0, **sample}),),
        residents=residents,
        foreign_bytes=None if foreign is None else int(foreign * GiB),
    )


def a_resident(promised: float, observed: float | None = None, **changes: Any) -> Resident:
    """A resident with `promised` and `observed` GiB."""
    fields: dict[str, Any] = {
        "job_id": 100,
        "attempt": 1,
        "promised_bytes": int(promised * GiB),
        "observed_bytes": None if observed is None else int(observed * GiB),
        "sharing": "time-sliced",
        "placed_at_s": 0.0,
    }
    return Resident(**{**fields, **changes})


def a_server(*gpus: GpuSnapshot, at_s: float = 0.0) -> ServerSnapshot:
    """A server snapshot of these GPUs."""
    return ServerSnapshot(at_s=at_s, gpus=gpus)
