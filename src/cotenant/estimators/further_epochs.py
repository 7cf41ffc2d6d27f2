"""The epochs that a script runs after the traced one, as far as the allocator reserves more in them.

A validation at the end of an epoch leaves large free blocks, which the iterations of the next epoch split. So the next
validation, or these iterations, may not find the blocks that they found before, and the allocator takes other segments.
"""

from __future__ import annotations

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

    What is left of the epoch before is freed where this one makes the like of it: live bytes cannot grow.
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
    first = tuple(_first_iteration(iteration.events, found.in_next, left))
    freed = {of_iteration_before(event.storage_id) for event in first if event.action == "free"}
    others = sorted(storage_id for storage_id in left if storage_id not in freed)
    epoch = replace(trace, events=(*first, *_rest(rest, own, [born[storage_id] for storage_id in others])))
    epoch = replace(iteration, at=len(first)).insert(epoch, _ITERATIONS - 1)
    return RepeatedSpan(len(events), epoch.events, tuple(sorted(left)))


def _first_iteration(
    events: Sequence[MemoryEvent], in_next: Mapping[int, int], left: Collection[int]
) -> Iterator[MemoryEvent]:
    """An iteration that frees what the last one of the epoch before left, as it freed what the one before it left."""
    for event in events:
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
