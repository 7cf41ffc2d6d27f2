"""Messages to the control loop: requests of clients, each with a future for the answer, and reports of events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from cotenant.core.errors import CotenantError
from cotenant.core.events import AttemptExited, AttemptStarted, EstimateReady, RepartitionEnded, ServerSampled, Tick
from cotenant.core.job import Job, JobSpec

T = TypeVar("T")

Report = AttemptStarted | AttemptExited | EstimateReady | RepartitionEnded
"""Events that have happened already: they cannot be refused, only saved later."""


@dataclass(frozen=True, slots=True)
class SubmitRequest(Generic[T]):
    """Queue all of `specs` or none; the answer is `query(manager, ids)`, computed once the jobs are on disk."""

    specs: tuple[JobSpec, ...]
    query: Any  # a callable: mypy takes a generic field of a callable type for a method
    answer: Future[T] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class JobChange:
    """Apply the verb `verb` of `job_verbs.JOB_VERBS` to a job; the answer is the job right after.

    `fields` are the new values of an update.
    """

    verb: str
    job_id: int
    cause: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    answer: Future[Job] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class BulkChange:
    """Apply a verb without fields to many jobs, in this order, in one transaction.

    The answer is why it had no effect, or None, for each of them.
    """

    verb: str
    job_ids: tuple[int, ...]
    cause: str
    answer: Future[list[CotenantError | None]] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """Call `function(manager)` in the thread that owns the manager; the answer is its result or its exception."""

    function: Any  # a callable, as in `SubmitRequest`
    answer: Future[T] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class WaitRequest:
    """The answer is the job, once it is `done` or has `started` for the first time."""

    job_id: int
    until: Literal["done", "started"]
    answer: Future[Job] = field(default_factory=Future)

    def reached(self, job: Job) -> bool:
        """Whether the job has come this far."""
        if job.is_done:
            return True
        return self.until == "started" and any(attempt.started_at_s is not None for attempt in job.attempts)


Message = SubmitRequest[Any] | JobChange | BulkChange | Query[Any] | WaitRequest | Report | ServerSampled


def batches(messages: Iterable[Message]) -> Iterable[list[Message]]:
    """Group consecutive messages that one transaction may hold: submissions and reports. Others come alone."""
    batch: list[Message] = []
    for message in messages:
        if isinstance(message, (SubmitRequest, EstimateReady, AttemptStarted, AttemptExited, RepartitionEnded)):
            batch.append(message)
            continue
        if batch:
            yield batch
            batch = []
        yield [message]
    if batch:
        yield batch


def resolve(answer: Future[T], compute: Callable[[], T], *, expected: type[Exception] = CotenantError) -> None:
    """Resolve `answer` with the result of `compute`, or with its exception if that is one of `expected`.

    Nothing is computed if the client has cancelled the future. Other exceptions propagate.
    """
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(compute())
    except expected as error:
        answer.set_exception(error)


def is_reading(event: object) -> bool:
    """Whether an event only leads to decisions: a sample of the server, or a tick."""
    return isinstance(event, (ServerSampled, Tick))


def refuse(messages: Iterable[Message], error: Exception) -> None:
    """Answer those of `messages` that wait for an answer with `error`."""
    for message in messages:
        answer = getattr(message, "answer", None)
        if answer is not None and not answer.done():
            answer.set_exception(error)
