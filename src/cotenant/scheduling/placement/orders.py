"""In which order a policy considers the queue: sort keys, smallest first, different for different jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from cotenant.core.errors import UsageError
from cotenant.core.job import Job, Queued
from cotenant.scheduling.checkpoints import is_moved
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions
from cotenant.scheduling.recovery import has_oomed, has_precedence

Order = Callable[[Job, JobPredictions], tuple[float, ...]]


def queued_at_s(job: Job) -> float:
    """When it came into the queue. A retry keeps the place of its job; one that was requeued goes to the end.

    A job that was requeued once and moved since then had its turn when the attempt began that was moved.
    """
    if len(job.attempts) > job.uncounted_attempts > 0 and is_moved(job.attempts[-1]):
        return job.attempts[-1].placed_at_s
    if job.uncounted_attempts and isinstance(job.state, Queued):
        return job.state.since_s
    return job.submitted_at_s


def fifo(job: Job, _facts: JobPredictions = NO_PREDICTIONS) -> tuple[float, ...]:
    """Larger priority first, then the order of submission. A retry keeps the place of its job."""
    return (-job.spec.priority, queued_at_s(job) if job.uncounted_attempts else job.submitted_at_s, job.id)


def retries_first(job: Job, _facts: JobPredictions = NO_PREDICTIONS) -> tuple[float, ...]:
    """As `fifo`, but jobs that were tried before go ahead of all others of their priority (CARMA's recovery queue).

    Except those of which no sample bears out that they ran out of memory, and those whose time slice was over.
    """
    if not job.attempts:
        return (-job.spec.priority, 0, job.submitted_at_s, job.id)
    is_ahead = len(job.attempts) > job.uncounted_attempts and (has_precedence(job) or not has_oomed(job))
    return (-job.spec.priority, -is_ahead, queued_at_s(job), job.id)


def least_work_first(job: Job, facts: JobPredictions) -> tuple[float, ...]:
    """Larger priority first, then the least duration x GPUs by history; those of unknown duration last."""
    duration_s = facts.duration_s(job)
    work = math.inf if duration_s is None else duration_s * job.spec.gpus
    return (-job.spec.priority, work, queued_at_s(job), job.id)


def least_attained(levels_s: Sequence[float]) -> Order:
    """Larger priority first, then by GPU seconds had in earlier attempts, in classes that begin at `levels_s`.

    Source: Tiresias, discretized two-dimensional least attained service.
    """

    def order(job: Job, _facts: JobPredictions = NO_PREDICTIONS) -> tuple[float, ...]:
        had_s = sum(
            (attempt.ended_at_s - attempt.started_at_s) * len(attempt.placement.gpu_uuids)
            for attempt in job.attempts
            if attempt.ended_at_s is not None and attempt.started_at_s is not None
        )
        level = sum(1 for level_s in levels_s if had_s >= level_s)
        return (-job.spec.priority, level, queued_at_s(job), job.id)

    return order


def shortest_first(job: Job, facts: JobPredictions) -> tuple[float, ...]:
    """Larger priority first, then the shortest by history; those of unknown duration last, oldest first."""
    duration_s = facts.duration_s(job)
    return (-job.spec.priority, math.inf if duration_s is None else duration_s, queued_at_s(job), job.id)


def due_first(patience: float) -> Order:
    """Larger priority first, then the one that is due first: `patience` times its GPU time after its submission.

    GPU time is duration x GPUs by history, or `assumed_duration_s` x GPUs. Small jobs pass large ones, but only those
    that came no later than the large one's due time, so no job is overtaken for ever.

    Raises:
        UsageError: patience is below zero.
    """
    if not 0 <= patience < math.inf:
        raise UsageError(f"a patience of {patience:g} is no multiple of a job's GPU time", hint="write e.g. `3`")

    def order(job: Job, facts: JobPredictions) -> tuple[float, ...]:
        duration_s = facts.duration_s(job)
        work_s = (facts.assumed_duration_s if duration_s is None else duration_s) * job.spec.gpus
        return (-job.spec.priority, queued_at_s(job) + patience * work_s, job.id)

    return order


def aged(order: Order, points_per_hour: float) -> Order:
    """`order`, with a job's priority growing by `points_per_hour` while it waits.

    All jobs age alike, so who is ahead of whom does not change with time: a priority of P is worth P / points_per_hour
    hours of waiting. Only orders that begin with the priority can be aged; all above do.

    Raises:
        UsageError: the points are below zero.
    """
    if not 0 <= points_per_hour < math.inf:
        raise UsageError(f"a priority cannot grow by {points_per_hour:g} an hour", hint="0 is no ageing")

    def key(job: Job, facts: JobPredictions) -> tuple[float, ...]:
        priority, *rest = order(job, facts)
        return (priority + points_per_hour * job.submitted_at_s / 3600.0, *rest)

    return key if points_per_hour else order
