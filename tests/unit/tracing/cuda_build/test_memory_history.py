"""PyTorch's memory history as the events of a trace."""

from __future__ import annotations

import pytest

from cotenant.tracing.cuda_build.memory_history import (
    BACKWARD,
    EMPTY_CACHE,
    FORWARD,
    HistoryMark,
    StorageNames,
    events_of,
)


def alloc(address, size=1024, **more):
    return {"action": "alloc", "addr": address, "size": size, "stream": 0, **more}


def free(address):
    return {"action": "free_completed", "addr": address, "size": 0, "stream": 0}


def mark(allocations, phase, frees=0):
    return HistoryMark(allocations=allocations, frees=frees, phase=phase)


def named(*found):
    names = StorageNames()
    for allocations, categories in found:
        names.add(allocations, categories)
    return names


def rows(events):
    return [(event.action, event.storage_id, event.phase) for event in events]


STEP = [alloc(1), alloc(2), alloc(3), free(3), alloc(4), free(2), alloc(5), free(4)]
"""A parameter, an activation, a temporary of forward; a gradient and a temporary of backward; then a state."""
STEP_MARKS = [mark(3, BACKWARD, frees=1), mark(4, "step", frees=2)]
STEP_NAMES = named((4, {1: "parameter", 4: "gradient"}), (5, {5: "optimizer state"}))


def test_storages_get_the_category_that_they_are_named_or_of_their_lifetime():
    found = [event.category for event in events_of(STEP, STEP_MARKS, STEP_NAMES) if event.action == "alloc"]
    assert found == ["parameter", "activation", "temporary", "gradient", "optimizer state"]


def test_forward_begins_behind_the_last_parameter():
    events = events_of(STEP, STEP_MARKS, STEP_NAMES)
    assert rows(events)[:3] == [("alloc", 0, "load"), ("phase", -1, "forward"), ("alloc", 1, "forward")]
    assert [event.phase for event in events if event.action == "alloc"][3:] == ["backward", "step"]


def test_phases_that_begin_at_the_same_allocation_keep_their_order():
    history = [alloc(1), alloc(2), free(2), alloc(3)]
    marks = [mark(1, BACKWARD), mark(2, "step", 1), mark(2, FORWARD, 1)]
    assert events_of(history, marks, named())[-1].phase == FORWARD


def test_cache_is_emptied_between_the_frees_around_it():
    history = [alloc(1), alloc(2), free(1), free(2), alloc(3)]
    marks = [mark(2, EMPTY_CACHE, frees=1)]
    actions = [event.action for event in events_of(history, marks, named())]
    assert actions == ["alloc", "alloc", "free", "empty_cache", "free", "alloc"]


@pytest.mark.parametrize("action", ["segment_free", "segment_unmap"])
def test_segments_that_torch_gives_back_by_itself_empty_the_cache_once(action):
    history = [alloc(1), free(1), {"action": action, "addr": 1}, {"action": action, "addr": 9}, alloc(2)]
    assert [event.action for event in events_of(history, [], named())] == ["alloc", "free", "empty_cache", "alloc"]


def test_an_address_that_is_used_again_is_another_storage():
    history = [alloc(7), free(7), alloc(7)]
    events = events_of(history, [], named((1, {7: "parameter"})))
    assert [(event.storage_id, event.category) for event in events if event.action == "alloc"] == [
        (0, "parameter"),
        (1, "buffer"),
    ]


def test_streams_and_private_pools_are_numbered():
    history = [alloc(1), alloc(2, stream=0xABC), alloc(3, pool_id=(0, 1)), free(3), {"action": "oom", "size": 9}]
    events = events_of(history, [], named())
    assert [event.stream for event in events] == [0, 1, -1, -1]


def test_segments_and_blocks_from_before_the_history_are_left_out():
    history = [{"action": "segment_alloc", "addr": 1, "size": 2 << 20, "stream": 0}, free(99), alloc(1)]
    assert rows(events_of(history, [], named())) == [("alloc", 0, "load")]
