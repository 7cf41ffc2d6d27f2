"""Why a job is where it is, in the shape of a `Wait`: a sentence, and a verdict per GPU where GPUs were looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cotenant.core.job import Done, Held, Job, Queued, Running, Starting
from cotenant.core.placement import Wait
from cotenant.core.units import format_bytes


def explanation(
    job: Job,
    *,
    refusal: str | None,
    wait: Wait | None,
    pending: Callable[[], str],
    indices: Mapping[str, int],
    peak_bytes: int = 0,
) -> Wait:
    """The sentence for `job`.

    `refusal` is why the policy is not asked about it, `wait` the policy's newest answer if it gave one since the job
    was queued, `pending` what to say without either; `indices` are the display indices of the GPUs by UUID,
    `peak_bytes` the most that a live attempt was seen to hold on one.
    """
    match job.state:
        case Queued() if refusal is not None:
            return _said(job, refusal)
        case Queued() if wait is not None:
            return wait
        case Queued(reason=reason):
            return _said(job, f"{reason}; {pending()}" if reason else pending())
        case Held(reason=reason):
            return _said(job, f"held: {reason}" if reason else "held until released")
        case Starting() | Running():
            return _said(job, _living(job, indices, peak_bytes))
        case Done(outcome=outcome, reason=reason):
            return _said(job, f"{outcome}: {reason}" if reason else outcome)


def _living(job: Job, indices: Mapping[str, int], peak_bytes: int) -> str:
    attempt = job.attempts[-1]
    place = attempt.placement
    names = ", ".join(str(indices[uuid]) if uuid in indices else uuid for uuid in place.gpu_uuids)
    verb = "starts" if isinstance(job.state, Starting) else "runs"
    noun = "GPU" if len(place.gpu_uuids) == 1 else "GPUs"
    again = f", attempt {attempt.number}" if attempt.number > 1 else ""
    over = f", outgrown: {format_bytes(peak_bytes)} seen" if peak_bytes > place.promised_bytes else ""
    stop = f", being stopped ({attempt.stop_asked})" if attempt.stop_asked else ""
    return (
        f"{verb} on {noun} {names} ({place.sharing}), {format_bytes(place.promised_bytes)} promised{over}{again}{stop}"
    )


def _said(job: Job, sentence: str) -> Wait:
    return Wait(job_id=job.id, reason=sentence)
