"""A trace survives the way through a file."""

from __future__ import annotations

import json

import pytest

from cotenant.core.errors import CotenantError
from cotenant.core.trace import LibraryCall, MemoryEvent, MemoryTrace
from cotenant.tracing.process import serialization


def a_trace() -> MemoryTrace:
    return MemoryTrace(
        events=(
            MemoryEvent("alloc", 0, 1024, "parameter", "load", "", 0, 0),
            MemoryEvent("op", 0, 0, "", "forward", "layer.0", 3, 1),
            MemoryEvent("free", 0, 0, "", "backward", "", 0, 0),
        ),
        ops=(LibraryCall(kind="conv_forward", thread="main", params={"x": (1, 2), "dtype": "float32"}),),
        header={"torch": "2.13.0", "steps": 3},
        warnings=("one",),
        partial=True,
    )


def test_comes_back_as_it_was():
    assert serialization.trace_from_dict(json.loads(json.dumps(serialization.trace_to_dict(a_trace())))) == a_trace()


def test_an_empty_trace_comes_back():
    empty = MemoryTrace(events=(), ops=(), header={})
    assert serialization.trace_from_dict(serialization.trace_to_dict(empty)) == empty


def test_refuses_another_schema():
    with pytest.raises(CotenantError, match="schema 99, wanted 1"):
        serialization.trace_from_dict({**serialization.trace_to_dict(a_trace()), "schema": 99})


def test_save_leaves_nothing_beside_the_file(tmp_path):
    serialization.save(tmp_path / "answer", {"a": 1})
    assert [each.name for each in tmp_path.iterdir()] == ["answer"]
