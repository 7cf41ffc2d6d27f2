"""The loop's side of the journal: what is kept, whether it is on disk by now, and since when it cannot be."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from cotenant.core.errors import JournalError
from cotenant.core.events import AttemptExited, Journaled
from cotenant.core.ports import Journal
from cotenant.daemon.log import log_event

logger = logging.getLogger(__name__)


class JournalWriter:
    """Writes events to `journal`, and to the log.

    Attributes:
        error: why the journal cannot be written at present, or None.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._is_behind = False  # ends of attempts are kept, but not on disk
        self.error: JournalError | None = None

    def append(self, events: Sequence[Journaled], *, durable: bool = True) -> None:
        """Keep `events`; on disk if `durable`.

        Raises:
            JournalError: none of them is kept.
        """
        if not events:
            return
        self._write(lambda: self._journal.append(events, durable=durable))
        # Starts need no disk: the engine knows them.
        self._is_behind = not durable and (self._is_behind or any(isinstance(each, AttemptExited) for each in events))
        for event in events:
            log_event(event)

    def flush(self) -> bool:
        """Whether all ends are on disk: nobody is told of what a power cut could take back."""
        if self._is_behind:
            try:
                self._write(self._journal.sync)
            except JournalError:
                return False
            self._is_behind = False
        return True

    def _write(self, write: Callable[[], None]) -> None:
        try:
            write()
        except JournalError as error:
            if self.error is None:
                logger.error("the journal cannot be written", extra={"fields": {"why": error.message}})
            self.error = error
            raise
        if self.error is not None:
            logger.info("the journal can be written again")
            self.error = None
