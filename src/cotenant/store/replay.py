"""Reading events in order, with their numbers.

A module of its own: every journal returns it, and journals import nothing of each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from cotenant.core.events import Journaled


class Replay:
    """Events, oldest first; `seq` is the number of the one that was read last."""

    def __init__(self, numbered: Iterator[tuple[int, Journaled]]) -> None:
        self._numbered = numbered
        self.seq = 0

    def __iter__(self) -> Iterator[Journaled]:
        return self

    def __next__(self) -> Journaled:
        self.seq, event = next(self._numbered)
        return event
