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
