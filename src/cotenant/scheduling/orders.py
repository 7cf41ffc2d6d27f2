"""In which order a policy considers the queue: sort keys, smallest first."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.core.job import Job

Order = Callable[[Job], tuple[float, ...]]


def fifo(job: Job) -> tuple[float, ...]:
    """Larger priority first, then the order of submission. A retry keeps the place of its job."""
    return (-job.spec.priority, job.submitted_at_s, job.id)
