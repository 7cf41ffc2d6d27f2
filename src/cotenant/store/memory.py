"""A journal that forgets with the process, for the simulator and tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cotenant.core.events import Journaled


class MemoryJournal:
    """A `core.ports.Journal` in a list."""

    def __init__(self) -> None:
        self._events: list[Journaled] = []

    def append(self, events: Sequence[Journaled]) -> None:
        """Keep `events`."""
        self._events.extend(events)

    def replay(self) -> Iterator[Journaled]:
        """All events so far; later ones are not included."""
        return iter(tuple(self._events))

    def of_job(self, job_id: int) -> list[Journaled]:
        """The events of one job."""
        return [each for each in self._events if each.job_id == job_id]

    def close(self) -> None:
        """Nothing to let go of."""
