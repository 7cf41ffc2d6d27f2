"""Dry run of a campaign, without a GPU: traces and estimates every job, which shows that its script runs.

A module of its own: it needs the estimators and no GPU, a campaign a GPU and no estimators.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.errors import CotenantError
from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest
from cotenant.estimators.traced import TracedEstimator
from cotenant.estimators.traced_result import TracedResult
from cotenant.measurement.job_list import JobList, MeasureJob


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """The estimate of a job; `problem` says why there is none."""

    job: MeasureJob
    estimate: Estimate | None
    problem: str
    elapsed_s: float


def dry_run(jobs: JobList, *, python: str, timeout_s: float) -> Iterator[DryRun]:
    """Estimates in the order of the jobs, as soon as they are made."""
    for job in jobs.jobs:
        began_s = time.monotonic()
        estimate, problem = None, ""
        try:
            estimate = explain(job, gpu=job.gpu, python=python, timeout_s=timeout_s).estimate
        except CotenantError as error:
            problem = error.message
        elapsed_s = time.monotonic() - began_s
        yield DryRun(job=job, estimate=estimate, problem=problem, elapsed_s=elapsed_s)


def explain(job: MeasureJob, *, gpu: str, python: str, timeout_s: float) -> TracedResult:
    """Estimate a job as it is measured: with the same script, settings, environment and steps.

    Raises:
        CotenantError: it could not be traced.
    """
    request = EstimateRequest(
        command=job.command,
        workdir=str(Path(job.script).parent),
        env={**os.environ, **job.env},
        gpu=gpu,
        timeout_s=timeout_s,
    )
    return TracedEstimator(steps=job.steps, python=python).explain(request)
