"""A trace of a process that uses several GPUs, taken apart: what each of them sees."""

from __future__ import annotations

from dataclasses import replace

from cotenant.core.trace import MemoryTrace

_FOR_ALL = frozenset({"phase", "empty_cache"})


def devices_of(trace: MemoryTrace) -> tuple[int, ...]:
    """Indices of the GPUs that hold anything; the first one if none does."""
    return tuple(sorted({event.device for event in trace.events if event.action == "alloc"})) or (0,)


def on_device(trace: MemoryTrace, index: int) -> MemoryTrace:
    """What the GPU `index` sees of `trace`, as if it were the only one. A cache that is emptied is that of all GPUs."""
    if devices_of(trace) == (0,) and index == 0:
        return trace
    events = tuple(
        event if event.device == 0 else event._replace(device=0)
        for event in trace.events
        if event.device == index or event.action in _FOR_ALL
    )
    return replace(trace, events=events)
