"""Restores the manager at a start: from the newest snapshot, the events after it, and what the engine recovered."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from cotenant.core.errors import JournalError
from cotenant.core.events import AttemptExited, Command
from cotenant.core.job import AttemptExit, Job, Starting
from cotenant.core.ports import AttemptRef, Journal, RecoveredAttempt
from cotenant.daemon.messages import Report
from cotenant.daemon.quarantine import Quarantine
from cotenant.osutil.garbage_collection import collection_paused
from cotenant.scheduling.manager import Manager

logger = logging.getLogger(__name__)

MIN_EVENTS = 1000
"""With fewer events since the last snapshot, replaying them is cheaper than writing a new one."""


def restore_manager(manager: Manager, journal: Journal) -> list[Command]:
    """Bring an empty manager to the end of the journal; returns the commands that it issues then.

    Events that cannot be applied are set aside.

    Raises:
        JournalError: the journal cannot be read, or too many events cannot be applied.
    """
    with collection_paused():
        commands = Quarantine(manager, journal, time.time).restore()
        save_snapshot_if_due(manager, journal)
    return commands


def save_snapshot_if_due(manager: Manager, journal: Journal) -> None:
    """Save a snapshot after `MIN_EVENTS` events. `manager` must be exactly at the end of `journal`."""
    try:
        if journal.events_since_snapshot() >= MIN_EVENTS:
            journal.save_snapshot(manager.snapshot())
    except JournalError as error:  # only the next start suffers: it replays more events
        logger.warning("no snapshot was saved", extra={"fields": {"why": error.message}})


def recovered_reports(jobs: Sequence[Job], found: Sequence[RecoveredAttempt], *, at_s: float) -> list[Report]:
    """The events of attempts that were open in the journal, from what the engine found of each; `found` is parallel."""
    reports: list[Report] = []
    for job, attempt in zip(jobs, found, strict=True):
        if attempt.started is not None and isinstance(job.state, Starting):
            reports.append(attempt.started)
        if attempt.exited is not None:
            reports.append(attempt.exited)
        elif attempt.started is None:
            reports.append(_missing(job, attempt.ref, at_s))
    return reports


def _missing(job: Job, ref: AttemptRef, at_s: float) -> AttemptExited:
    """The exit of an attempt that the engine knows nothing of."""
    if isinstance(job.state, Starting):
        end = AttemptExit(exit_code=None, signal=None, reason="never-ran", detail="the daemon ended before it started")
    else:
        end = AttemptExit(exit_code=None, signal=None, reason="lost", detail="its files are gone")
    return AttemptExited(
        at_s=at_s, cause="restart", job_id=ref.job_id, attempt=ref.attempt, exit=end, peak_observed_bytes={}
    )
