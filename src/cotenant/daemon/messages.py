"""What reaches the loop: requests of clients, each with a future for the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.events import (
    AttemptExited,
    AttemptStarted,
    EstimateReady,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobRequeued,
    ServerSampled,
)
from cotenant.core.job import Done, Held, Job, JobSpec, Queued
from cotenant.daemon.api.views import label

T = TypeVar("T")

Report = AttemptStarted | AttemptExited | EstimateReady
"""Events that tell what has happened already: they cannot be refused, only kept later."""

CHANGES: Mapping[str, type[JobCancelled] | type[JobHeld] | type[JobReleased] | type[JobRequeued]] = {
    "cancel": JobCancelled,
    "hold": JobHeld,
    "release": JobReleased,
    "requeue": JobRequeued,
}


@dataclass(frozen=True, slots=True)
class SubmitRequest(Generic[T]):
    """Queue all of `specs` or none; answers, once they are durable, with what `look` returns of the manager and ids."""

    specs: tuple[JobSpec, ...]
    look: Any  # a callable, as in `Query`
    answer: Future[T] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class JobChange:
    """Cancel, hold, release, requeue or update a job; answers with the job right after.

    `fields` are what an update changes in its spec.
    """

    kind: Literal["cancel", "hold", "release", "requeue", "update"]
    job_id: int
    cause: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    answer: Future[Job] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """Look at the manager from the thread that owns it; answers with what `question` returns."""

    question: Any  # a callable; a generic field of a callable confuses type checkers more than it helps
    answer: Future[T] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """Answers with the job once it is `done`, or has `started` for the first time."""

    job_id: int
    until: Literal["done", "started"]
    answer: Future[Job] = field(default_factory=Future)

    def reached(self, job: Job) -> bool:
        """Whether the job has come this far."""
        return job.is_done or (self.until == "started" and any(each.started_at_s is not None for each in job.attempts))


Input = SubmitRequest[Any] | JobChange | Query[Any] | WaitRequest | Report | ServerSampled


def batches(inputs: Iterable[Input]) -> Iterable[list[Input]]:
    """Inputs in order, those together that may be kept in one transaction: what only adds knowledge."""
    group: list[Input] = []
    for each in inputs:
        if isinstance(each, (SubmitRequest, EstimateReady, AttemptStarted, AttemptExited)):
            group.append(each)
            continue
        if group:
            yield group
            group = []
        yield [each]
    if group:
        yield group


def resolve(answer: Future[T], work: Callable[[], T], *, refusals: type[Exception] = CotenantError) -> None:
    """Answer with what `work` returns, or with its error if that is one of `refusals`; others are raised.

    Without work where nobody waits for the answer any more.
    """
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(work())
    except refusals as error:
        answer.set_exception(error)


def check_change(kind: str, job: Job) -> None:
    """Refuse a change that would do nothing.

    Raises:
        UsageError: says in what state the job is.
    """
    state, named = job.state, label(job)
    if kind == "requeue":
        if isinstance(state, (Queued, Held)):
            raise UsageError(f"job {named} is {'held' if isinstance(state, Held) else 'queued'} already")
        if not isinstance(state, Done) and job.attempts[-1].stop_reason is not None:
            raise UsageError(f"job {named} is being stopped ({job.attempts[-1].stop_reason})")
        return
    if isinstance(state, Done):
        raise UsageError(f"job {named} is over ({state.outcome})")
    if kind == "hold" and not isinstance(state, Queued):
        already = "held" if isinstance(state, Held) else "running"
        raise UsageError(f"job {named} is {already}, only a queued job can be held")
    if kind == "update" and not isinstance(state, (Queued, Held)):
        raise UsageError(f"job {named} is running, only a job that waits can be updated")
    if kind == "release" and not isinstance(state, Held):
        raise UsageError(f"job {named} is not held")
