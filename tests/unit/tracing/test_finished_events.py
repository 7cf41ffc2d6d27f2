"""The events of a trace once it ends, with those of replaced calls."""

from __future__ import annotations

from cotenant.tracing.finished_events import Expansion, finished_events, with_replaced_calls
from cotenant.tracing.recorded_span import RecordedSpan, ReplacedCall


def action(name, number, nbytes=0, phase="forward", module="net"):
    return name, number, nbytes, phase, module, 0, 0


SPAN = RecordedSpan(
    [action("alloc", 5, 100), action("op", 3), action("alloc", 6, 20), action("alloc", 7, 8), action("free", 5)],
    first=5, end=8, left=[6, 7],
)  # fmt: skip
"""A call: a temporary of 100 B, a result of 20 B, and a cast of 8 B that is freed in front of the next call."""
BEFORE = [action("alloc", 0, 1, "load"), *SPAN.actions, action("free", 7)]


def test_a_replaced_call_has_the_events_of_an_alike_one():
    actions = [*BEFORE, action("alloc", 8, 20), action("alloc", 9, 4), action("alloc", 10, 20), action("free", 10)]
    calls = [ReplacedCall(9, 10, SPAN, [6]), ReplacedCall(7, 8, SPAN, [6])]
    expanded = with_replaced_calls(actions, calls, 11)
    call = [action("alloc", 11, 100), action("op", 3), action("alloc", 8, 20), action("alloc", 12, 8)]
    call += [action("free", 11), action("free", 12)]
    other = [action("alloc", 13, 100), action("op", 3), action("alloc", 10, 20), action("alloc", 14, 8)]
    other += [action("free", 13), action("free", 14)]
    assert expanded.actions == [*BEFORE, *call, action("alloc", 9, 4), *other, action("free", 10)]
    assert expanded.like == {11: 5, 12: 7, 13: 5, 14: 7}


def test_a_position_moves_behind_the_events_of_the_calls_before_it():
    actions = [*BEFORE, action("alloc", 8, 20), action("alloc", 9, 4)]
    calls = [ReplacedCall(7, 8, SPAN, [6])]
    found = [with_replaced_calls(actions, calls, 10, position).position for position in (None, 3, 7, 8, 9)]
    assert found == [None, 3, 7, 13, 14]


def test_categories_are_known_or_follow_from_the_phases():
    actions = [
        action("alloc", 0, 1, "load"), action("alloc", 1, 2, "load"), action("free", 1, 0, "load"),
        action("alloc", 2, 3), action("alloc", 3, 4), action("free", 3), action("free", 2, 0, "backward"),
        action("alloc", 4, 5, "step"), action("op", 6), action("alloc", 5, 6), action("alloc", 7, 6),
    ]  # fmt: skip
    events = list(finished_events(Expansion(actions, {7: 5}, None), {5: "parameter"}))
    found = [event.category for event in events if event.action == "alloc"]
    assert found == ["buffer", "temporary", "activation", "temporary", "temporary", "parameter", "parameter"]
    assert [(event.storage_id, event.op_id) for event in events if event.action == "op"] == [(-1, 6)]
