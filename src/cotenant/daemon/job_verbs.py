"""The verbs that change a job: one table, from which the control loop, the HTTP routes and the client work.

A new verb is one entry in `JOB_VERBS`, and a command in `cotenant.cli`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cotenant.core.errors import UsageError
from cotenant.core.events import JobCancelled, JobHeld, JobReleased, JobRequeued, JobUpdated
from cotenant.core.job import Done, Held, Job, JobSpec, Queued
from cotenant.daemon.api.submission.job_specs import with_changes
from cotenant.daemon.api.views.job_words import label

ChangeEvent = JobCancelled | JobHeld | JobReleased | JobRequeued | JobUpdated


@dataclass(frozen=True, slots=True, kw_only=True)
class JobVerb:
    """A way to change a job.

    Attributes:
        name: as in `POST /v1/jobs/ID/NAME`.
        summary: what it does, for the HTTP reference.
        event: class of the journal event; `JobUpdated` is the one that carries a new spec.
        refusal: returns why the verb would have no effect on a job, or None.
        newest_first: whether the newest of many jobs is changed first, so that none starts on what an older one frees.
    """

    name: str
    summary: str
    event: type[ChangeEvent]
    refusal: Callable[[Job], str | None]
    newest_first: bool = False

    @property
    def takes_fields(self) -> bool:
        """Whether a request names new values for fields of the spec."""
        return self.event is JobUpdated

    def check(self, job: Job) -> None:
        """Refuse a change without effect.

        Raises:
            UsageError: names the state of the job.
        """
        why = self.refusal(job)
        if why is not None:
            raise UsageError(f"job {label(job)} {why}")

    def new_spec(self, job: Job, fields: Mapping[str, object]) -> JobSpec:
        """The spec that the change leads to.

        Raises:
            UsageError: a field cannot be changed, or not to this value.
        """
        return with_changes(job.spec, fields, job.id) if self.takes_fields else job.spec

    def new_event(self, job: Job, spec: JobSpec, *, at_s: float, cause: str) -> ChangeEvent:
        """The event to journal; `spec` is that of `new_spec`."""
        if self.event is JobUpdated:
            return JobUpdated(at_s=at_s, cause=cause, job_id=job.id, spec=spec)
        return self.event(at_s=at_s, cause=cause, job_id=job.id)  # type: ignore[call-arg]  # no other takes a spec


def _cancel(job: Job) -> str | None:
    return _is_done(job)


def _hold(job: Job) -> str | None:
    if isinstance(job.state, (Done, Queued)):
        return _is_done(job)
    return f"is {'held' if isinstance(job.state, Held) else 'running'}, only a queued job can be held"


def _release(job: Job) -> str | None:
    return _is_done(job) if isinstance(job.state, (Done, Held)) else "is not held"


def _requeue(job: Job) -> str | None:
    state = job.state
    if isinstance(state, (Queued, Held)):
        return f"is {'held' if isinstance(state, Held) else 'queued'} already"
    if not isinstance(state, Done) and job.attempts[-1].stop_reason is not None:
        return f"is being stopped ({job.attempts[-1].stop_reason})"
    return None


def _update(job: Job) -> str | None:
    if isinstance(job.state, (Done, Queued, Held)):
        return _is_done(job)
    return "is running, only a pending job can be updated"


def _is_done(job: Job) -> str | None:
    return f"is over ({job.state.outcome})" if isinstance(job.state, Done) else None


JOB_VERBS: Mapping[str, JobVerb] = {
    verb.name: verb
    for verb in (
        JobVerb(
            name="cancel",
            summary="Cancel a job; a running attempt is stopped.",
            event=JobCancelled,
            refusal=_cancel,
            newest_first=True,
        ),
        JobVerb(
            name="hold", summary="Keep a queued job from starting.", event=JobHeld, refusal=_hold, newest_first=True
        ),
        JobVerb(name="release", summary="Let a held job start.", event=JobReleased, refusal=_release),
        JobVerb(
            name="requeue",
            summary="Queue a finished job again, or stop and queue a running one.",
            event=JobRequeued,
            refusal=_requeue,
        ),
        JobVerb(
            name="update", summary="Change fields of the spec of a pending job.", event=JobUpdated, refusal=_update
        ),
    )
}
