"""How attempts end whose allocation ends. A module of its own: the end of an allocation looks like one of the job.

Slurm signals all processes at once, the job's before its runner's or after, so a result is read as what it may mean.
"""

from __future__ import annotations

import time
from dataclasses import replace

from cotenant.core.errors import BackendError
from cotenant.core.events import AttemptExited
from cotenant.core.job import AttemptExit
from cotenant.engines.attempt_dir import AttemptDir
from cotenant.hosts.keeper import ALLOCATION_ENDED

UNORDERED_STOP = "SIGTERM to its runner"
"""What a runner writes that was signalled and finds no order: Slurm without cgroups, or a host that is shut down."""
HOST_ENDED = f"its host or allocation ended: {UNORDERED_STOP}"


def is_doubtful(event: AttemptExited) -> bool:
    """Whether it may be by the end of an allocation: a job may answer SIGTERM with any exit code but 0."""
    return event.exit.reason == "exited" and event.exit.exit_code != 0


def as_loss(event: AttemptExited, *, is_ordered: bool = False) -> AttemptExited:
    """A stop that nobody here has ordered is a loss: the job may be requeued, as after a crash of its host.

    `is_ordered`: a stop of it was; a runner cannot read why where the disk was full.
    """
    end = event.exit
    if end.reason == "stopped" and end.detail.startswith(ALLOCATION_ENDED):
        return replace(event, exit=replace(end, reason="lost", detail=ALLOCATION_ENDED))
    if end.reason == "stopped" and end.detail.startswith(UNORDERED_STOP) and not is_ordered:
        return replace(event, exit=replace(end, reason="lost", detail=HOST_ENDED))
    return event


def last_end(attempt_dir: AttemptDir, why: str, cause: str) -> AttemptExited:
    """The end of an attempt whose allocation is over; durable, so that the next daemon finds the same.

    Raises:
        BackendError: it cannot be written.
    """
    try:
        buried = attempt_dir.tombstone()
        known = attempt_dir.exited(cause)
        if known is not None and not is_doubtful(known):
            return as_loss(known)
        end = AttemptExit(exit_code=None, signal=None, reason="never-ran" if buried else "lost", detail=why)
        at_s = time.time()
        attempt_dir.write_result(end, at_s)
    except OSError as error:
        raise BackendError(f"cannot write the end of `{attempt_dir.path}`: {error.strerror}") from error
    return attempt_dir.exit_event(end, at_s, cause)
