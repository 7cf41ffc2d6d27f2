"""Keeps the control loop alive when an event cannot be applied, or no decision can be made because of one job.

State in memory is not trusted after an exception. The event is set aside in the journal, with the traceback, and the
manager is restored from the journal without it, as at a start. If a decision fails, which no journaled event caused
alone, the job that was being looked at is held; if it runs, its measurements are ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import traceback
from collections.abc import Callable
from types import TracebackType

from cotenant.core.errors import CotenantError, JournalError, UnreadableEvent
from cotenant.core.events import (
    AttemptExited,
    AttemptStarted,
    Command,
    EstimateReady,
    Event,
    JobHeld,
    JobSubmitted,
    JobUpdated,
    Journaled,
    ServerSampled,
    Tick,
)
from cotenant.core.job import AttemptExit, Job, Queued, Running, Starting
from cotenant.core.ports import Journal
from cotenant.daemon.messages import Report
from cotenant.scheduling.manager import Manager

logger = logging.getLogger(__name__)

MAX_AT_START = 20
"""Events that one start sets aside. Where more cannot be applied, this code or the file is wrong, not the events."""
MAX_PAUSE_S = 60.0
"""Longest pause of decisions that fail without a job to blame."""
MAX_TRACE_CHARS = 20_000


class Quarantine:
    """Sets events aside and restores `manager`. Used in the control loop's thread, and before it starts."""

    def __init__(self, manager: Manager, journal: Journal, now: Callable[[], float]) -> None:
        self._manager = manager
        self._journal = journal
        self._now = now
        self._muted: set[int] = set()  # running jobs whose measurements make decisions fail
        self._failures = 0  # decisions in a row that failed without a job to blame
        self._paused_until_s = 0.0

    def restore(self) -> list[Command]:
        """Bring an empty manager to the end of the journal; returns the commands that it issues then.

        Raises:
            JournalError: the journal cannot be read, or more than `MAX_AT_START` of its events cannot be applied.
        """
        for _ in range(MAX_AT_START + 1):
            seq = 0
            try:
                snapshot, events = self._journal.load_snapshot()
                try:
                    return self._manager.restore(events, snapshot)
                finally:
                    seq = events.seq
            except UnreadableEvent as error:
                if not error.is_intact:
                    raise
                problem: Exception = error
                seq = error.seq
            except JournalError:
                raise
            except Exception as error:  # noqa: BLE001 (whatever the event makes the code raise)
                problem = error
            self._manager.reset()
            self._set_aside(seq or self._suspect(problem), problem)
        raise JournalError(
            f"more than {MAX_AT_START} events of the journal cannot be applied, the last of them: {_line(problem)}",
            hint="`cotenant daemon repair` lists them; was cotenant downgraded?",
        )

    def failed(self, event: Event, error: Exception) -> tuple[Journaled | None, list[Command]]:
        """Restore the manager after `event` made it raise `error`.

        The result is an event to journal and apply next, if any, and the commands that may have been lost.

        Raises:
            JournalError: the journal cannot be read or written.
        """
        job_id = culprit_id(error)
        fields = {"event": type(event).__name__, "job": job_id}
        logger.error("the manager failed on an event", exc_info=error, extra={"fields": fields})
        if isinstance(event, (ServerSampled, Tick)):
            commands = self.rebuild()  # first: in memory the job may have the placement that failed
            return self._after_decision(job_id, error), commands
        telemetry = self._manager.telemetry_state()
        before = len(self._journal.quarantined())
        if isinstance(event, (EstimateReady, AttemptExited)) and event.job_id == job_id:
            self._journal.quarantine(event, at_s=self._now(), error=_line(error), trace=_trace(error))
        commands = self.rebuild()  # sets the event aside if it cannot be applied even without a decision
        with contextlib.suppress(ValueError, TypeError, KeyError):
            self._manager.restore_telemetry(telemetry)
        if len(self._journal.quarantined()) == before:
            return self._after_decision(job_id, error), commands
        if not isinstance(event, (EstimateReady, AttemptStarted, AttemptExited)):
            return None, commands
        return without_payload(event, f"was set aside: {_line(error)}", self._now()), commands

    def _after_decision(self, job_id: int | None, error: Exception) -> JobHeld | None:
        """The event that keeps a job from making decisions fail; None if decisions go on without its measurements."""
        job = None if job_id is None else self._manager.jobs.get(job_id)
        if job is not None and isinstance(job.state, Queued):
            cause = f"the scheduler failed on this job: {_line(error)}; the daemon's log has more"
            return JobHeld(at_s=self._now(), cause=cause, job_id=job.id)
        if job is not None and job.id not in self._muted and isinstance(job.state, (Starting, Running)):
            self._muted.add(job.id)
            return None
        self._failures += 1
        self._paused_until_s = self._now() + min(MAX_PAUSE_S, 2.0**self._failures)
        return None

    @property
    def is_paused(self) -> bool:
        """Whether decisions pause, because they failed without a job to blame."""
        return self._now() < self._paused_until_s

    def admitted(self, event: ServerSampled) -> ServerSampled | None:
        """`event` without the measurements that made decisions fail; None while decisions pause."""
        if self.is_paused:
            return None
        if not self._muted:
            return event
        observed = tuple(sample for sample in event.observed if sample.job_id not in self._muted)
        return dataclasses.replace(event, observed=observed)

    def decided(self) -> None:
        """A decision succeeded."""
        self._failures = 0

    def rebuild(self) -> list[Command]:
        """Restore the manager from the journal; returns the commands that it issues then. Telemetry starts anew.

        Raises:
            JournalError: the journal cannot be read.
        """
        self._manager.reset()
        return self.restore()

    def _set_aside(self, seq: int, error: Exception) -> None:
        fields = {"seq": seq, "why": _line(error)}
        logger.error("event set aside; `cotenant daemon repair` shows it", exc_info=error, extra={"fields": fields})
        self._journal.quarantine(seq, at_s=self._now(), error=_line(error), trace=_trace(error))

    def _suspect(self, error: Exception) -> int:
        """The number of the event to blame for an exception after the last event was applied.

        Raises:
            JournalError: no job is to blame.
        """
        job_id = culprit_id(error)
        seq, reader = 0, self._journal.replay()
        for event in reader:
            kinds = (EstimateReady, AttemptExited, JobUpdated, JobSubmitted)
            if event.job_id == job_id and isinstance(event, kinds):
                seq = reader.seq
        if not seq:
            raise JournalError(f"the journal cannot be applied: {_line(error)}", hint="see the log") from error
        return seq


def without_payload(report: Report, why: str, at_s: float) -> Report | None:
    """`report` reduced to what any journal can hold and any manager apply; None if there is nothing left to reduce."""
    reduced: Report | None = None
    if isinstance(report, EstimateReady):
        reduced = dataclasses.replace(report, estimate=None, error=f"the estimate {why}")
    elif isinstance(report, AttemptExited):
        reduced = AttemptExited(
            at_s=at_s,
            cause=report.cause,
            job_id=report.job_id,
            attempt=report.attempt,
            exit=AttemptExit(exit_code=None, signal=None, reason="lost", detail=f"its exit {why}"),
            peak_observed_bytes={},
        )
    return None if reduced == report else reduced


def refused(error: Exception) -> CotenantError:
    """The error for a client whose request made the scheduler fail."""
    return CotenantError(
        f"the scheduler failed on this request: {_line(error)}", hint="`cotenant show` says what became of the job"
    )


def culprit_id(error: Exception) -> int | None:
    """Id of the job that the innermost frame of the traceback with one was looking at; None if none has one."""
    frames = []
    step: TracebackType | None = error.__traceback__
    while step is not None:
        frames.append(step.tb_frame)
        step = step.tb_next
    for frame in reversed(frames):
        for name, value in frame.f_locals.items():
            if name == "job_id" and type(value) is int:
                return value
            if isinstance(value, Job):
                return value.id
            if "job_id" in getattr(type(value), "__dataclass_fields__", ()):
                return int(value.job_id)
    return None


def _line(error: Exception) -> str:
    """The exception in one line."""
    text = error.message if isinstance(error, CotenantError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]


def _trace(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-MAX_TRACE_CHARS:]
