"""The epochs that a script runs after the traced one, as far as the allocator reserves more in them.

A validation at the end of an epoch leaves large free blocks, which the iterations of the next epoch split. So the next
validation, or these iterations, may not find the blocks that they found before, and the allocator takes other segments.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from cotenant.allocator import of_iteration_before
from cotenant.core.trace import MemoryEvent, MemoryTrace
from cotenant.estimators.further_iterations import (
    Kind,
    RepeatedSpan,
    iteration_before_last,
    kind_of,
    with_further_iterations,
    with_growing_repeats,
)
from cotenant.estimators.replay_input import SoftwareStack
from cotenant.gpu_specs import GpuSpec

_ITERATIONS = 3  # of an epoch, before the last traced one, which may have the smaller last batch


def continue_training(trace: MemoryTrace, gpu: GpuSpec, stack: SoftwareStack) -> MemoryTrace:
    """`trace`, of one GPU, with as many repeats of an iteration and of an epoch as reserve more memory on `gpu`."""
    longer = with_further_iterations(trace, gpu, stack)
    epoch = repeated_epoch(trace)
    if epoch is None or longer.header.epoch_end is None:
        return longer
    return with_growing_repeats(longer, replace(epoch, at=longer.header.epoch_end), gpu, stack)


def repeated_epoch(trace: MemoryTrace) -> RepeatedSpan | None:
    """Another epoch: iterations as the last traced ones, and what follows them; None: none is known to come.

    What is left of the epoch before is freed where this one makes the like of it: live bytes cannot grow. A storage
    that it left whole, and that the iterations resize, is still whole in the first one: FSDP gathers no parameters that
    the last forward pass of a validation left gathered.
    """
    at = trace.header.epoch_end
    events = trace.events[:at]
    found = iteration_before_last(events) if at is not None else None
    if found is None or not any(event.action == "alloc" for event in events[found.end :]):
        return None
    iteration, rest = found.span, events[found.span.at :]
    born = {event.storage_id: event for event in rest if event.action == "alloc"}
    left = born.keys() - {event.storage_id for event in rest if event.action == "free"}
    own = born.keys() | {event.storage_id for event in iteration.events if event.action == "alloc"}
    resized = _resized(events)
    whole = {(resized[number], born[number].bytes): number for number in sorted(left & resized.keys())}
    gathered = _gathered(iteration.events, resized, whole)
    first = tuple(_first_iteration(iteration.events, found.in_next, left, gathered))
    freed = {of_iteration_before(event.storage_id) for event in first if event.action == "free"}
    others = sorted(storage_id for storage_id in left if storage_id not in freed)
    epoch = replace(trace, events=(*first, *_rest(rest, own, [born[storage_id] for storage_id in others])))
    epoch = replace(iteration, at=len(first)).insert(epoch, _ITERATIONS - 1)
    return RepeatedSpan(len(events), epoch.events, tuple(sorted(left)))


def _resized(events: Sequence[MemoryEvent]) -> dict[int, int]:
    """The first number of each storage that was resized to nothing or from it: it is freed, and has a number more."""
    sizes = {event.storage_id: event.bytes for event in events if event.action == "alloc"}
    first: dict[int, int] = {}
    for before, event in itertools.pairwise(events):
        is_replaced = before.action == "free" and event.action == "alloc"
        if is_replaced and (sizes.get(before.storage_id) == 0) != (event.bytes == 0):
            first[event.storage_id] = first.setdefault(before.storage_id, before.storage_id)
    return first


def _gathered(
    events: Sequence[MemoryEvent], resized: Mapping[int, int], whole: Mapping[tuple[int, int], int]
) -> dict[int, int]:
    """Storages that an iteration makes whole first, and that are among `whole` before it, with their numbers there."""
    freed = {event.storage_id for event in events if event.action == "free"}
    still, gathered = dict(whole), {}
    for event in events:
        if event.action == "alloc" and event.storage_id in freed:
            old = still.pop((resized.get(event.storage_id, -1), event.bytes), None)
            if old is not None:
                gathered[event.storage_id] = old
    return gathered


def _first_iteration(
    events: Sequence[MemoryEvent], in_next: Mapping[int, int], left: Collection[int], gathered: Mapping[int, int]
) -> Iterator[MemoryEvent]:
    """An iteration that frees what the last one of the epoch before left, as it freed what the one before it left.

    `gathered`: storages that are whole before it, and are not made.
    """
    for event in events:
        if event.storage_id in gathered:
            if event.action == "free":
                yield event._replace(storage_id=of_iteration_before(gathered[event.storage_id]))
            continue
        if event.action != "free" or event.storage_id >= 0:
            yield event
            continue
        last = in_next.get(of_iteration_before(event.storage_id))
        if last is not None and last in left:
            yield event._replace(storage_id=of_iteration_before(last))


def _rest(events: Sequence[MemoryEvent], own: Collection[int], old: Sequence[MemoryEvent]) -> Iterator[MemoryEvent]:
    """`events` without frees of what is older than the epoch, and with frees of what the epoch before left of its rest.

    `old`: the allocations of the latter. A name of the script that a loop binds again and again is bound first by its
    first iteration, so what it held is freed behind the first allocation of this kind, or the n-th for n of them.
    """
    waiting: dict[Kind, deque[int]] = {}
    for event in old:
        waiting.setdefault(kind_of(event), deque()).append(event.storage_id)
    for event in events:
        if event.action != "free" or event.storage_id in own:
            yield event
        if event.action == "alloc" and (of_kind := waiting.get(kind_of(event))):
            number = of_iteration_before(of_kind.popleft())
            yield event._replace(action="free", storage_id=number, bytes=0, category="", module="")
