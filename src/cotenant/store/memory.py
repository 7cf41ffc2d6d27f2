"""A journal that forgets with the process, for the simulator and tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cotenant.core.events import Journaled
from cotenant.core.snapshot import ManagerSnapshot


class MemoryJournal:
    """A `core.ports.Journal` in a list."""

    def __init__(self) -> None:
        self._events: list[Journaled] = []
        self._folded: ManagerSnapshot | None = None
        self._folded_count = 0

    def append(self, events: Sequence[Journaled], *, durable: bool = True) -> None:  # noqa: ARG002
        """Keep `events`."""
        self._events.extend(events)

    def sync(self) -> None:
        """Nothing is on a disk."""

    def replay(self) -> Iterator[Journaled]:
        """All events so far; later ones are not included."""
        return iter(tuple(self._events))

    def load_snapshot(self) -> tuple[ManagerSnapshot | None, Iterator[Journaled]]:
        """The newest state that was given, and the events after it."""
        return self._folded, iter(self._events[self._folded_count :])

    def events_since_snapshot(self) -> int:
        """How many events there are after that state."""
        return len(self._events) - self._folded_count

    def save_snapshot(self, folded: ManagerSnapshot) -> None:
        """Keep what the events so far amount to."""
        self._folded, self._folded_count = folded, len(self._events)

    def of_job(self, job_id: int) -> list[Journaled]:
        """The events of one job."""
        return [each for each in self._events if each.job_id == job_id]

    def close(self) -> None:
        """Nothing to let go of."""
