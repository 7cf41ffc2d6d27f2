"""Writes the control loop's events to the journal and the log, and knows what is not on disk yet."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from cotenant.core.codec import CodecError, to_json
from cotenant.core.errors import JournalError
from cotenant.core.events import AttemptExited, Journaled
from cotenant.core.ports import Journal
from cotenant.daemon.log import log_event

logger = logging.getLogger(__name__)


RESERVE_RETRY_S = 5.0
"""Between two attempts to set space aside again, or to write after an error."""
URGENT_ONLY = "the disk of the journal is full: only cancellations and ends of jobs are written"
FULL_HINT = "free some disk space and try again"


class UnwritableEventError(JournalError):
    """An event has no JSON form, so no journal can hold it. The journal itself works."""


class JournalWriter:
    """Appends events to `journal` and logs them.

    When the disk is full, the space that the journal has set aside is given up for what is `urgent`: cancellations, and
    what has happened already. All else is refused until the space could be set aside again, also after a restart.

    Attributes:
        error: why the journal cannot be written at present, or None.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._has_unsynced_exits = False
        self._uses_reserve = False
        self._reserve_due_s = self._probe_due_s = 0.0
        self.error: JournalError | None = None
        if not journal.restore_reserve():
            self.disk_is_full("it has no room for the space that is set aside")

    @property
    def uses_reserve(self) -> bool:
        """Whether only urgent events are taken, because the disk is full."""
        if self._uses_reserve and time.monotonic() >= self._reserve_due_s:
            self._reserve_due_s = time.monotonic() + RESERVE_RETRY_S
            if self._journal.restore_reserve():
                logger.info("the disk has room again")
                self._uses_reserve, self.error = False, None
        return self._uses_reserve

    def disk_is_full(self, why: str) -> None:
        """Take only what is urgent from now on: something besides the journal found no room on its disk."""
        logger.warning(URGENT_ONLY, extra={"fields": {"why": why}})
        self._journal.release_reserve()
        self._uses_reserve, self._reserve_due_s = True, time.monotonic() + RESERVE_RETRY_S
        self.error = JournalError(f"the disk of the journal is full: {why}", hint=FULL_HINT)

    def append(self, events: Sequence[Journaled], *, durable: bool = True, urgent: bool = False) -> None:
        """Write `events`, and sync them to disk if `durable`.

        Raises:
            UnwritableEventError: one of `events` can never be written; none was.
            JournalError: the journal failed; none was written.
        """
        if not events:
            return
        if self._uses_reserve and not urgent and self.uses_reserve:
            raise self.error or JournalError("the disk of the journal is full", hint=FULL_HINT)
        try:
            self._write(lambda: self._journal.append(events, durable=durable))
        except JournalError as error:
            unwritable = next((event for event in events if not _is_writable(event)), None)
            if unwritable is not None:
                self.error = None
                raise UnwritableEventError(
                    f"{type(unwritable).__name__} of job {unwritable.job_id} cannot be written: {error.message}"
                ) from error
            if not urgent or not self._journal.release_reserve():
                raise
            logger.warning(URGENT_ONLY)
            self._uses_reserve, self._reserve_due_s = True, time.monotonic() + RESERVE_RETRY_S
            self._write(lambda: self._journal.append(events, durable=durable))
        # An unsynced start costs nothing in a power cut: the engine reports it again.
        exits = any(isinstance(event, AttemptExited) for event in events)
        self._has_unsynced_exits = not durable and (self._has_unsynced_exits or exits)
        for event in events:
            log_event(event)

    def flush(self) -> bool:
        """Sync exits to disk before clients see them; returns False if the disk fails."""
        if self._has_unsynced_exits:
            try:
                self._write(self._journal.sync)
            except JournalError:
                return False
            self._has_unsynced_exits = False
        return True

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except JournalError as error:
            if self.error is None:
                logger.error("cannot write the journal", extra={"fields": {"why": error.message}})
            self.error = error
            raise
        self._worked()

    def probe(self) -> None:
        """After an error, find out whether it is over: the next event may be far off."""
        is_due = self.error is not None and not self._uses_reserve and time.monotonic() >= self._probe_due_s
        if is_due and self._journal.is_writable():
            self._worked()
        elif is_due:
            self._probe_due_s = time.monotonic() + RESERVE_RETRY_S

    def _worked(self) -> None:
        if self.error is not None and not self._uses_reserve:
            logger.info("the journal can be written again")
            self.error = None


def _is_writable(event: Journaled) -> bool:
    try:
        to_json(event)
    except (CodecError, ValueError, RecursionError):  # NaN, infinity, an integer of more than 4300 digits
        return False
    return True
