"""The iterations that a script runs after the traced ones, as far as the allocator reserves more in them.

A trace has about three iterations. In the next one results and gradients of the iteration before lie elsewhere, so that
a block may not fit where it fitted before, and the allocator takes another segment. An iteration lasts from the end of
an optimizer step to the end of the next one.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cotenant.allocator import of_iteration_before
from cotenant.core.trace import MemoryEvent, MemoryTrace
from cotenant.estimators.replay_input import SoftwareStack, make_replay_input
from cotenant.gpu_specs import GpuSpec

_MADE = frozenset(("alloc", "op"))
Kind = tuple[int, str, str, int]
_GRADIENT = "gradient"
_PASSES = {"forward", "backward"}
_MAX_STEPS = 4  # of an iteration: so many optimizers are traced for two rounds (`tracing.training.optimizer_schedule`)


@dataclass(frozen=True, slots=True)
class RepeatedSpan:
    """An iteration or an epoch as it comes again behind the first `at` events of a trace.

    Attributes:
        events: storages have the numbers of the traced span, and those that the span before it left the number
            `of_iteration_before`.
        carried: storages that each span leaves to the next one, which frees them.
    """

    at: int
    events: tuple[MemoryEvent, ...]
    carried: tuple[int, ...]

    def insert(self, trace: MemoryTrace, times: int) -> MemoryTrace:
        """`trace` with the span repeated; each time its storages get new numbers."""
        numbers = itertools.count(1 + max(event.storage_id for event in trace.events))
        newest = {storage_id: storage_id for storage_id in self.carried}
        events = list(trace.events[: self.at])
        for _ in range(times):
            known = {of_iteration_before(storage_id): number for storage_id, number in newest.items()}
            known.update((event.storage_id, next(numbers)) for event in self.events if event.action == "alloc")
            events += (event._replace(storage_id=known.get(event.storage_id, -1)) for event in self.events)
            newest = {storage_id: known[storage_id] for storage_id in self.carried}
        for event in trace.events[self.at :]:
            number = newest.get(event.storage_id)
            events.append(event if number is None else event._replace(storage_id=number))
        end = trace.header.epoch_end
        if end is not None and end >= self.at:
            end += times * len(self.events)
        return replace(trace, events=tuple(events), header=replace(trace.header, epoch_end=end))


@dataclass(frozen=True, slots=True)
class TracedIteration:
    """An iteration that comes again, beside the traced one behind it.

    Attributes:
        span: the iteration as it is repeated; `end`: of the next one.
        in_next: the storage of the next iteration that each of its storages is like, if there is one.
    """

    span: RepeatedSpan
    end: int
    in_next: Mapping[int, int]


def with_further_iterations(trace: MemoryTrace, gpu: GpuSpec, stack: SoftwareStack) -> MemoryTrace:
    """`trace`, of one GPU, with as many repeats of an iteration as reserve more memory on `gpu`; usually none does."""
    found = repeated_iteration(trace.events)
    return trace if found is None else with_growing_repeats(trace, found, gpu, stack)


def with_growing_repeats(trace: MemoryTrace, span: RepeatedSpan, gpu: GpuSpec, stack: SoftwareStack) -> MemoryTrace:
    """`trace` with as many repeats of `span`, which begins with a phase, as reserve more memory on `gpu`."""
    before = trace.events[: span.at]
    once = make_replay_input(replace(trace, events=(*before, *span.events)), gpu, stack)
    # Phases are in front of the same events before and after library calls became allocations.
    phases = sum(event.action == "phase" for event in before)
    starts = [index for index, event in enumerate(once.events) if event.action == "phase"]
    times = once.count_growing_repeats(starts[phases], span.carried)
    if not times:
        return trace
    continued = span.insert(trace, times)
    # What follows in the trace, such as the iteration that was compared, may reserve as much.
    reserved = [make_replay_input(one, gpu, stack).peak_reserved_bytes() for one in (trace, continued)]
    return continued if reserved[1] > reserved[0] else trace


def repeated_iteration(events: Sequence[MemoryEvent]) -> RepeatedSpan | None:
    """The traced iteration that requests most of those that repeat; None: none is known to.

    With several optimizers that step in turn, an iteration has as many steps. An iteration repeats if the next one
    makes its allocations and calls in the same modules and phases, or a part of them in this order, as with the smaller
    last batch of an epoch, and frees all that is left of it. What is left longer was allocated once, unless its
    counterpart of the next iteration is left, too: then memory grows, or optimizers step in turn, or it waits in a full
    queue, whose oldest entry the iteration frees: each repeat then frees that of the one before it.
    """
    ends = list(_step_ends(events))
    freed_at = _freed_at(events)
    requested = list(itertools.accumulate((event.bytes for event in events), initial=0))
    for steps in range(1, _MAX_STEPS + 1):
        befores = [0] * steps + ends
        iterations = zip(befores, ends, ends[steps:], ends[2 * steps :], strict=False)
        # The latest of alike ones; most scripts have only these, so the first is found to repeat.
        for before, start, at, end in sorted(
            iterations, key=lambda marks: (requested[marks[2]] - requested[marks[1]], marks[1]), reverse=True
        ):
            found = _as_repeated(events, before, start, at, end, freed_at)
            if found is not None:
                return found.span
    return None


def iteration_before_last(events: Sequence[MemoryEvent]) -> TracedIteration | None:
    """The last but one iteration of `events`, if it repeats as `repeated_iteration` says."""
    ends = list(_step_ends(events))
    freed_at = _freed_at(events)
    for steps in range(1, _MAX_STEPS + 1):
        if len(ends) > 2 * steps:
            before = ends[-1 - 3 * steps] if len(ends) > 3 * steps else 0
            found = _as_repeated(events, before, ends[-1 - 2 * steps], ends[-1 - steps], ends[-1], freed_at)
            if found is not None:
                return found
    return None


def _freed_at(events: Sequence[MemoryEvent]) -> dict[int, int]:
    """The index of the event that frees a storage, by its number."""
    return {event.storage_id: index for index, event in enumerate(events) if event.action == "free"}


def _step_ends(events: Sequence[MemoryEvent]) -> Iterator[int]:
    """Indices behind the last events of optimizer steps."""
    phase = ""
    for index, event in enumerate(events):
        if event.action == "phase":
            if phase == "step":
                yield index
            phase = event.phase
    if phase == "step":
        yield len(events)


def _as_repeated(
    events: Sequence[MemoryEvent], before: int, start: int, at: int, end: int, freed_at: Mapping[int, int]
) -> TracedIteration | None:
    """The iteration up to `at`, with what the one from there to `end` frees of it. `before`: of the one in front."""
    own, forever = events[start:at], len(events)
    if not {event.phase for event in own} >= _PASSES:  # optimizers that step within the backward pass
        return None
    born = {event.storage_id for event in own if event.action == "alloc"}
    left = {storage_id for storage_id in born if freed_at.get(storage_id, forever) >= at}
    once = {storage_id for storage_id in left if freed_at.get(storage_id, forever) >= end}
    frees: dict[int, list[MemoryEvent]] = {}
    in_next: dict[int, int] = {}
    dropped = _dropped_entries(events, before, start, at)
    place = 0
    for event in events[at:end]:
        if event.action in _MADE:
            counterpart = _like(event, own, place + 1)
            if counterpart is None:
                return None
            place = counterpart
            if event.action == "alloc":
                in_next[own[place].storage_id] = event.storage_id
            is_left = event.action == "alloc" and freed_at.get(event.storage_id, forever) >= end
            if is_left and own[place].storage_id in once:
                entries = dropped.get(kind_of(own[place]))
                if not entries:
                    return None
                once.remove(own[place].storage_id)
                drop = entries.popleft()
                frees.setdefault(drop, []).append(
                    own[drop]._replace(storage_id=of_iteration_before(own[place].storage_id))
                )
        elif event.action == "free" and event.storage_id in left:
            old = event._replace(storage_id=of_iteration_before(event.storage_id))
            frees.setdefault(place, []).append(old)
    repeated: list[MemoryEvent] = []
    for index, event in enumerate(own):
        if event.storage_id not in once and (event.action != "free" or event.storage_id in born):
            repeated.append(event)
        repeated += frees.get(index, ())
    return TracedIteration(RepeatedSpan(at, tuple(repeated), tuple(sorted(left - once))), end, in_next)


def _dropped_entries(events: Sequence[MemoryEvent], before: int, start: int, at: int) -> dict[Kind, deque[int]]:
    """Where, behind `start`, storages are freed that two iterations or more left, by the kind of their allocation."""
    old = {event.storage_id: event for event in itertools.islice(events, before) if event.action == "alloc"}
    found: dict[Kind, deque[int]] = {}
    for index, event in enumerate(itertools.islice(events, start, at)):
        if event.action == "free" and event.storage_id in old:
            found.setdefault(kind_of(old[event.storage_id]), deque()).append(index)
    return found


def kind_of(event: MemoryEvent) -> Kind:
    """What allocations of one line of a script have in common."""
    return event.bytes, event.phase, event.module, event.stream


def _like(event: MemoryEvent, others: Sequence[MemoryEvent], first: int) -> int | None:
    """Index of the first of `others`, from `first` on, that allocates or calls in the same place as `event`.

    A smaller last batch may make fewer temporary storages in a place, but the same gradients.
    """
    for index in range(first, len(others)):
        other = others[index]
        if (
            other.action == event.action
            and other.phase == event.phase
            and other.module == event.module
            and other.stream == event.stream
            and (other.category == _GRADIENT) == (event.category == _GRADIENT)
        ):
            return index
    return None
