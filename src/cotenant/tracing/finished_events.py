"""The events of a trace once it ends: storages get their categories, and replaced calls the events of alike ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cotenant.core.trace import MemoryEvent
from cotenant.tracing.recorded_span import RecordedAction, ReplacedCall

_OF_STORAGES = frozenset(("alloc", "free"))


class Expansion(NamedTuple):
    """Actions with those that replaced calls would have had.

    `like`: the recorded storage that a new one is like; `position`: where a given position of the actions is now.
    """

    actions: list[RecordedAction]
    like: dict[int, int]
    position: int | None


def with_replaced_calls(
    actions: Sequence[RecordedAction], calls: Iterable[ReplacedCall], first_number: int, position: int | None = None
) -> Expansion:
    """Give replaced calls the events of alike ones; new storages have numbers from `first_number` on.

    What an alike call left beside its results is freed at its end, as it was in front of the next one.
    """
    expanded: list[RecordedAction] = []
    numbers = itertools.count(first_number)
    like: dict[int, int] = {}
    place, more = 0, 0
    for call in sorted(calls, key=lambda call: call.at):
        results = actions[call.at : call.end]
        number_of = dict(zip(call.results, (action[1] for action in results), strict=True))
        for number in (action[1] for action in call.span.actions if action[0] == "alloc"):
            if number not in number_of:
                number_of[number] = next(numbers)
                like[number_of[number]] = number
        expanded += actions[place : call.at]
        for action in call.span.actions:
            is_of_storage = action[0] in _OF_STORAGES
            expanded.append((action[0], number_of[action[1]], *action[2:]) if is_of_storage else action)
        for number in call.span.left:
            if number not in call.results:
                expanded.append(("free", number_of[number], 0, *results[-1][3:]))
        place = call.end
        if position is not None and position >= place:
            more = len(expanded) - place
    return Expansion([*expanded, *actions[place:]], like, None if position is None else position + more)


def finished_events(expansion: Expansion, categories: Mapping[int, str]) -> Iterator[MemoryEvent]:
    """The events, with `categories` of recorded storages.

    An unclassified storage that outlives its phase is an activation or a buffer.
    """
    actions, like = expansion.actions, expansion.like
    freed_in = {number: phase for action, number, _, phase, *_ in actions if action == "free"}
    for action, number, nbytes, phase, module, stream, device in actions:
        if action == "alloc":
            category = categories.get(like.get(number, number)) or _guess_category(phase, freed_in.get(number))
            yield MemoryEvent(action, number, nbytes, category, phase, module, stream, device)
        elif action == "op":
            yield MemoryEvent(action, -1, 0, "", phase, module, stream, device, number)
        else:
            yield MemoryEvent(action, number, 0, "", phase, module, stream, device)


def _guess_category(allocated_in: str, freed_in: str | None) -> str:
    if allocated_in == "forward" and freed_in != "forward":
        return "activation"
    if allocated_in == "load" and freed_in != "load":
        return "buffer"
    return "temporary"
