"""Words for jobs and times in answers of the daemon: states, exit codes, labels, RFC 3339."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from cotenant.core.events import AttemptIdle
from cotenant.core.job import Done, Held, Job, JobSpec, Queued, Running, Starting


def rfc3339(at_s: float | None) -> str | None:
    """`2026-11-21T01:17:26.120Z`; None where there is no time."""
    if at_s is None:
        return None
    return datetime.fromtimestamp(at_s, tz=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def state_name(job: Job) -> str:
    """The state in one word, as Slurm's users know it."""
    match job.state:
        case Queued():
            return "PENDING"
        case Held():
            return "HELD"
        case Starting():
            return "STARTING"
        case Running():
            return "RUNNING"
        case Done(outcome=outcome):
            return outcome.upper()


def exit_code(job: Job) -> int | None:
    """The exit code that clients exit with; None before the end.

    The job's own, or 128 + N after signal N; 124 after its time limit, as timeout(1); 143 after cancellation, as after
    SIGTERM.
    """
    if not isinstance(job.state, Done):
        return None
    if job.state.outcome == "completed":
        return 0
    if job.state.outcome == "timeout":
        return 124
    if job.state.outcome == "cancelled":
        return 143
    attempt = job.last_attempt
    if attempt is None or attempt.exit is None:
        return 1
    if attempt.exit.signal is not None:
        return 128 + attempt.exit.signal
    return attempt.exit.exit_code or 1


def end_message(job: Job) -> dict[str, Any]:
    """The message of a notification: how a job ended."""
    return {
        "event": "ended",
        "id": job.id,
        "label": label(job),
        "name": job.spec.name,
        "user": job.spec.user,
        "state": state_name(job),
        "reason": job.state.reason if isinstance(job.state, Done) else "",
        "exit_code": exit_code(job),
        "ended_at": rfc3339(job.state.at_s) if isinstance(job.state, Done) else None,
    }


def idle_message(spec: JobSpec, event: AttemptIdle) -> dict[str, Any]:
    """The message of a notification: a job holds GPUs and computes nothing."""
    return {
        "event": "idle",
        "id": event.job_id,
        "label": label_of(event.job_id, spec),
        "name": spec.name,
        "user": spec.user,
        "state": "RUNNING",
        "reason": f"idle: {event.cause}",
        "exit_code": None,
        "ended_at": None,
    }


def label(job: Job) -> str:
    """The id as people write it: `17`, or `17_3` for a task of an array."""
    return label_of(job.id, job.spec)


def label_of(job_id: int, spec: JobSpec) -> str:
    """`label` of the job with this id and spec."""
    array = spec.array
    return str(job_id) if array is None else f"{array.array_id}_{array.index}"
