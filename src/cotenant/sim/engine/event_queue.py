"""The event queue of a simulation. A module of its own: the simulation and the fault injector share it."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")

# Kinds of events. The first two belong to attempts and are stale once the attempt's version has changed.
BEGIN_WORK, MILESTONE, REQUEUE, WAKE, FAULT, REPAIR, SLICE_END, OVERRUN_CHECK, MOVE_CHECK, SAVED, REPARTITIONED = range(
    11
)


class EventQueue(Generic[T]):
    """A heap of (time, order, kind, subject, version).

    Events are never removed: rescheduling an event increments the version of its subject, and events with an
    old version are skipped. Equal times keep the order of `put`, so a run repeats exactly.
    """

    __slots__ = ("_count", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[float, int, int, T, int]] = []
        self._count = 0

    def put(self, at_s: float, kind: int, subject: T, version: int = 0) -> None:
        """Schedule an event."""
        self._count += 1
        heapq.heappush(self.heap, (at_s, self._count, kind, subject, version))
