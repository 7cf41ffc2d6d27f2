"""Memory over the traced steps in few points, for people who watch a job: one pass over the events, without a replay.

The full history, with the allocator's segments, is in `allocation_history`; it takes as long as a replay.

A module of its own: estimator processes make it, the daemon only stores it.
"""

from __future__ import annotations

from collections.abc import Iterable

from cotenant.core.estimate import MemoryProfile
from cotenant.core.trace import CATEGORIES, MemoryEvent

MAX_POINTS = 120
MAX_PHASES = 40


def memory_profile(events: Iterable[MemoryEvent], device: int = 0) -> MemoryProfile | None:
    """Live bytes by category, at the largest sum of each stretch of events; None without events.

    The stretches are of equal length, so no peak is lost. Bytes are as requested, before the allocator rounds them.
    """
    chosen = [event for event in events if event.device == device and event.action in ("alloc", "free")]
    if not chosen:
        return None
    stride = -(-len(chosen) // MAX_POINTS)
    live: dict[int, tuple[str, int]] = {}
    now = dict.fromkeys(CATEGORIES, 0)
    columns: dict[str, list[int]] = {name: [] for name in CATEGORIES}
    phases: list[tuple[int, str]] = []
    for first in range(0, len(chosen), stride):
        best, found = -1, now
        for event in chosen[first : first + stride]:
            if event.action == "alloc":
                live[event.storage_id] = (event.category, event.bytes)
                now[event.category] += event.bytes
            else:
                category, size = live.pop(event.storage_id, ("", 0))
                if category:
                    now[category] -= size
            total = sum(now.values())
            if total > best:
                best, found = total, dict(now)
        phase = chosen[first].phase
        if (not phases or phases[-1][1] != phase) and len(phases) < MAX_PHASES:
            phases.append((first // stride, phase))
        for name, column in columns.items():
            column.append(found[name])
    return MemoryProfile(
        category_bytes={name: tuple(column) for name, column in columns.items() if any(column)}, phases=tuple(phases)
    )
