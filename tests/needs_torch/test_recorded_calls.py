"""Calls that a recorder takes as like an earlier one."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the recorder watches torch's storages")

import torch

from cotenant.tracing.recorded_span import RecordedSpan
from cotenant.tracing.recorder import TraceRecorder

SPAN = RecordedSpan([("alloc", 0, 64, "forward", "net", 0, 0)], first=0, end=1, left=[0])


@pytest.mark.parametrize(
    ("made", "others", "results", "is_like"),
    [(1, 0, [0], True), (1, 1, [0], False), (2, 0, [0], False), (0, 1, [0], False), (0, 0, [], False)],
    ids=["its result", "another event", "two storages", "no storage", "no result"],
)
def test_a_replaced_call_leaves_its_results_alone(made, others, results, is_like):
    recorder = TraceRecorder()
    recorder.record_call("gemm", "main", {}, 0)
    before = recorder.position()
    tensors = [torch.ones(16) for _ in range(made)]
    for tensor in tensors:
        recorder.record_storage(tensor)
    for _ in range(others):
        recorder.record_call("gemm", "main", {}, 0)
    assert recorder.note_replaced(before, SPAN, results) is is_like
    assert list(recorder.replaced_calls) == ([before[0]] if is_like else [])


class UnreadNumbers(dict):
    """Numbers of storages by address, which may be looked up but not gone through."""

    def values(self):
        raise AssertionError("it goes through all live storages")


def test_live_storages_are_those_since_a_position():
    """A rollout keeps thousands of storages: it is asked about with each call of its model, and looks at new ones."""
    recorder = TraceRecorder()
    recorder._ids = UnreadNumbers()
    old = [torch.ones(16) for _ in range(4)]
    new = [torch.ones(16) for _ in range(3)]
    for tensor in (*old, *new):
        recorder.record_storage(tensor)
    del tensor, new[1], old[0]
    assert recorder.live_since(len(old) + 1) == {4, 6}
    assert recorder.live_since(0) == {1, 2, 3, 4, 6}
    assert recorder.any_live({5, 6})
    assert not recorder.any_live({0, 5})


def test_what_a_repeated_span_replaces_lives_no_more():
    """Each repeat frees the storage that the one before it left."""
    recorder = TraceRecorder()
    tensor = torch.ones(16)
    recorder.record_storage(tensor)
    before = recorder.position()
    for _ in range(2):  # the second is recorded as the first
        made = torch.ones(16)
        recorder.record_storage(made)
        tensor = made
        del made
        if not recorder.is_paused:
            span = recorder.span_since(before)
            recorder.pause()
    recorder.resume(span)
    recorder.repeat(span)
    assert recorder.storage_id(tensor) == 3
    assert recorder.live_since(0) == {3}
