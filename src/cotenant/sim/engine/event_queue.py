"""The queue of what will happen in a simulated world: by time, then in the order it was put there."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")


class EventQueue(Generic[T]):
    """A heap of (time, order, kind, subject, version).

    Nothing is ever taken back: whoever puts an event counts up a version of its subject when that event no longer
    holds, and skips events with an old one. The order of equal times is that of `put`, so a run repeats exactly.
    """

    __slots__ = ("_count", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int, T, int]] = []
        self._count = 0

    def put(self, at_s: float, kind: int, subject: T, version: int = 0) -> None:
        """Let `kind` happen to `subject` at `at_s`."""
        self._count += 1
        heapq.heappush(self.heap, (at_s, self._count, kind, subject, version))
