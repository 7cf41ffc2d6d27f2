"""How a start gets by without reading all the journal: what events amount to is kept beside them, now and then."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from cotenant.core.errors import JournalError
from cotenant.core.events import Command
from cotenant.core.ports import Journal
from cotenant.scheduling.manager import Manager

logger = logging.getLogger(__name__)

MIN_EVENTS = 1000
"""With fewer, reading them costs less than writing down what they amount to."""


def restore_manager(manager: Manager, journal: Journal) -> list[Command]:
    """Bring an empty manager to where the journal ends; what it asks for.

    Raises:
        JournalError: the journal cannot be read.
    """
    with _gc_paused():
        since, later = journal.load_snapshot()
        commands = manager.restore(later, since)
        save_snapshot_if_due(manager, journal)
    return commands


def save_snapshot_if_due(manager: Manager, journal: Journal) -> None:
    """Keep the state of `manager`, if many events lead to it; it has taken in all that `journal` holds, and no more."""
    try:
        if journal.events_since_snapshot() >= MIN_EVENTS:
            journal.save_snapshot(manager.folded())
    except JournalError as error:  # the next start takes longer, that is all
        logger.warning("no snapshot was kept", extra={"fields": {"why": error.message}})


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Look for no garbage meanwhile: all that is made is here to stay, and looking at it takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
