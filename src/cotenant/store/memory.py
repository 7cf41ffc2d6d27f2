"""A journal in memory, for the simulator and tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cotenant.core.events import Journaled
from cotenant.core.snapshot import ManagerSnapshot


class MemoryJournal:
    """A `core.ports.Journal` in a list."""

    def __init__(self) -> None:
        self._events: list[Journaled] = []
        self._snapshot: ManagerSnapshot | None = None
        self._snapshot_count = 0

    def append(self, events: Sequence[Journaled], *, durable: bool = True) -> None:  # noqa: ARG002
        """Append `events`."""
        self._events.extend(events)

    def sync(self) -> None:
        """Does nothing: there is no disk."""

    def replay(self) -> Iterator[Journaled]:
        """All events so far; later ones are not included."""
        return iter(tuple(self._events))

    def load_snapshot(self) -> tuple[ManagerSnapshot | None, Iterator[Journaled]]:
        """The newest snapshot, and the events after it."""
        return self._snapshot, iter(self._events[self._snapshot_count :])

    def events_since_snapshot(self) -> int:
        """How many events there are after the newest snapshot."""
        return len(self._events) - self._snapshot_count

    def save_snapshot(self, state: ManagerSnapshot) -> None:
        """Save the state after all events so far."""
        self._snapshot, self._snapshot_count = state, len(self._events)

    def of_job(self, job_id: int) -> list[Journaled]:
        """The events of one job."""
        return [event for event in self._events if event.job_id == job_id]

    def close(self) -> None:
        """Does nothing: no file is open."""
