"""PyTorch's memory history as the events of a trace. Needs no torch.

Source: torch/cuda/memory.py, `_snapshot`: `device_traces`. A block is given back at `free_completed`, when no other
stream uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotenant.core.trace import Action, MemoryEvent

FORWARD, BACKWARD, LOAD = "forward", "backward", "load"
EMPTY_CACHE = "empty_cache"
_DEFAULT_POOL = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMark:
    """Something that the script did, between two allocations.

    Attributes:
        allocations, frees: allocations and frees before it, by the allocator's own statistics.
        phase: the phase that begins, or `EMPTY_CACHE`.
    """

    allocations: int
    frees: int
    phase: str


@dataclass(slots=True)
class StorageNames:
    """What storages are, by their addresses at a time: those that live after `allocations` allocations."""

    found: list[tuple[int, dict[int, str]]] = field(default_factory=list)

    def add(self, allocations: int, categories: Mapping[int, str]) -> None:
        """Categories by address, after so many allocations."""
        self.found.append((allocations, dict(categories)))


def events_of(
    history: Iterable[Mapping[str, Any]], marks: Sequence[HistoryMark], names: StorageNames
) -> list[MemoryEvent]:
    """The trace of the GPU that `history` is about.

    A private pool of CUDA graphs becomes a negative stream, as in `MemoryEvent`. A free of a block that was allocated
    before the history began is left out.
    """
    entries = list(history)
    named = _named(entries, names)
    marks = _with_first_forward(marks, named)
    streams, pools = {0: 0}, {_DEFAULT_POOL: 0}
    live: dict[int, tuple[int, int]] = {}
    events: list[MemoryEvent] = []
    pending = list(marks)
    allocations = frees = 0
    phase = LOAD
    for entry in entries:
        action, address = entry["action"], entry.get("addr", 0)  # an `oom` has none
        # cuDNN's benchmark empties the cache in C++ (aten/src/ATen/native/cudnn/Conv_v8.cpp), where no mark is made.
        if action in ("segment_free", "segment_unmap") and (not events or events[-1].action != EMPTY_CACHE):
            events.append(MemoryEvent("empty_cache", -1, 0, "", phase, "", 0, 0))
        if action == "alloc":
            while pending and pending[0].allocations <= allocations:
                phase = _apply(pending.pop(0), phase, events)
            stream = streams.setdefault(entry.get("stream", 0), len(streams))
            pool = pools.setdefault(tuple(entry.get("pool_id") or _DEFAULT_POOL), len(pools))
            stream = stream if not pool else -pool
            live[address] = allocations, stream
            events.append(MemoryEvent("alloc", allocations, entry["size"], "", phase, "", stream, 0))
            allocations += 1
        elif action == "free_completed" and address in live:
            while pending and pending[0].allocations <= allocations and pending[0].frees <= frees:
                phase = _apply(pending.pop(0), phase, events)
            number, stream = live.pop(address)
            events.append(MemoryEvent("free", number, 0, "", phase, "", stream, 0))
            frees += 1
    for mark in pending:
        phase = _apply(mark, phase, events)
    return _with_categories(events, named)


def _apply(mark: HistoryMark, phase: str, events: list[MemoryEvent]) -> str:
    """Add the event of a mark; the phase from there on."""
    action: Action = "phase"
    if mark.phase == EMPTY_CACHE:
        action = "empty_cache"
    else:
        phase = mark.phase
    events.append(MemoryEvent(action, -1, 0, "", phase, "", 0, 0))
    return phase


def _with_first_forward(marks: Sequence[HistoryMark], named: Mapping[int, str]) -> list[HistoryMark]:
    """`marks`, with the first forward pass: what follows the last parameter or buffer that precedes a backward."""
    first = next((mark.allocations for mark in marks if mark.phase != EMPTY_CACHE), None)
    if first is None:
        return list(marks)
    of_module = [number for number, name in named.items() if name in ("parameter", "buffer") and number < first]
    begin = max(of_module, default=-1) + 1
    return sorted([HistoryMark(allocations=begin, frees=0, phase=FORWARD), *marks], key=lambda mark: mark.allocations)


def _with_categories(events: Sequence[MemoryEvent], named: Mapping[int, str]) -> list[MemoryEvent]:
    """`events` with the category of each allocation: as named, or else by when it was made and freed."""
    freed_in = {event.storage_id: event.phase for event in events if event.action == "free"}

    def category(event: MemoryEvent) -> str:
        return named.get(event.storage_id) or _guess(event.phase, freed_in.get(event.storage_id))

    return [event._replace(category=category(event)) if event.action == "alloc" else event for event in events]


def _guess(phase: str, freed_in: str | None) -> str:
    """The category of a storage that nothing names; what is never freed belongs to a library."""
    if phase == LOAD:
        return "buffer" if freed_in is None else "temporary"
    if freed_in is None:
        return "workspace"
    return "activation" if phase == FORWARD and freed_in != FORWARD else "temporary"


def _named(entries: Sequence[Mapping[str, Any]], names: StorageNames) -> dict[int, str]:
    """Categories by the number of the allocation."""
    pending = sorted(names.found, key=lambda found: found[0])
    newest: dict[int, int] = {}
    result: dict[int, str] = {}
    allocations = 0

    def resolve(limit: int) -> None:
        while pending and pending[0][0] <= limit:
            for address, category in pending.pop(0)[1].items():
                if address in newest:
                    result.setdefault(newest[address], category)

    for entry in entries:
        if entry["action"] == "alloc":
            resolve(allocations)
            newest[entry["addr"]] = allocations
            allocations += 1
    resolve(allocations)
    return result
