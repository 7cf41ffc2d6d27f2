"""Why a job is where it is, in the shape of a `Wait`: a sentence, and a verdict per GPU where GPUs were looked at."""

from __future__ import annotations

from collections.abc import Mapping

from cotenant.core.job import Done, Held, Job, Queued, Running, Starting
from cotenant.core.placement import Wait
from cotenant.core.units import format_bytes


def explanation(
    job: Job, *, wait: Wait | None, pending: str, jobs: Mapping[int, Job], indices: Mapping[str, int]
) -> Wait:
    """The sentence for `job`.

    `wait` is the policy's newest answer if it gave one since the job was queued, `pending` what to say if not;
    `jobs` are all jobs, `indices` the display index of each GPU UUID.
    """
    match job.state:
        case Queued() if waits_for := open_dependencies(job, jobs):
            ids = ", ".join(str(each) for each in waits_for)
            return _said(job, f"waits for job{'' if len(waits_for) == 1 else 's'} {ids} to complete")
        case Queued() if wait is not None:
            return wait
        case Queued(reason=reason):
            return _said(job, f"{reason}; {pending}" if reason else pending)
        case Held(reason=reason):
            return _said(job, f"held: {reason}" if reason else "held until released")
        case Starting() | Running():
            return _said(job, _living(job, indices))
        case Done(outcome=outcome, reason=reason):
            return _said(job, f"{outcome}: {reason}" if reason else outcome)


def open_dependencies(job: Job, jobs: Mapping[int, Job]) -> tuple[int, ...]:
    """The jobs that `job` still waits for."""
    return tuple(each for each in job.spec.after if each not in jobs or not is_completed(jobs[each]))


def is_completed(job: Job) -> bool:
    """Whether it is over and went well."""
    return isinstance(job.state, Done) and job.state.outcome == "completed"


def _living(job: Job, indices: Mapping[str, int]) -> str:
    attempt = job.attempts[-1]
    place = attempt.placement
    names = ", ".join(str(indices[uuid]) if uuid in indices else uuid for uuid in place.gpu_uuids)
    verb = "starts" if isinstance(job.state, Starting) else "runs"
    noun = "GPU" if len(place.gpu_uuids) == 1 else "GPUs"
    again = f", attempt {attempt.number}" if attempt.number > 1 else ""
    stop = f", being stopped ({attempt.stop_asked})" if attempt.stop_asked else ""
    return f"{verb} on {noun} {names} ({place.sharing}), {format_bytes(place.promised_bytes)} promised{again}{stop}"


def _said(job: Job, sentence: str) -> Wait:
    return Wait(job_id=job.id, reason=sentence)
