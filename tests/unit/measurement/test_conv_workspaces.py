"""Workspaces of convolutions: what is measured, and how the allocator's history is read."""

from __future__ import annotations

from collections import Counter

from cotenant.core.trace import LibraryCall
from cotenant.estimators.cudnn.table import cudnn_table
from cotenant.measurement.conv_child import freed_sizes
from cotenant.measurement.conv_workspaces import CALLS, COLUMNS, MAX_BYTES, conv_rows, grid, summary
from cotenant.measurement.result_table import ResultTable
from json_shapes import SCHEMAS, problems

GPU = {"name": "NVIDIA H200", "capability": [9, 0], "sm_count": 132, "cudnn": 91900, "torch": "2.11.0"}


def test_the_grid_is_large_distinct_and_bounded():
    cases = grid()
    kinds = Counter((case["dtype"], case["channels_last"]) for case in cases)
    assert kinds["float32", False] >= 200
    assert min(kinds["float32", True], kinds["bfloat16", False], kinds["bfloat16", True], kinds["float16", False]) >= 40
    assert len({str(case) for case in cases}) == len(cases)
    for case in cases:
        n, c, h, w = case["x"]
        k, _, r, s = case["w"]
        assert 4 * max(n * c * h * w, k * c * r * s) <= MAX_BYTES
        for side, kernel, axis in ((h, r, 0), (w, s, 1)):
            span = case["dilation"][axis] * (kernel - 1) + 1
            out = (side + 2 * case["padding"][axis] - span) // case["stride"][axis] + 1
            assert case["y"][2 + axis] == out


def test_every_float32_case_is_known_to_the_table():
    table = cudnn_table((9, 0))
    plain = [case for case in grid() if case["dtype"] == "float32" and not case["channels_last"]]
    assert all(table(LibraryCall(kind="conv_forward", thread="main", params=case)) is not None for case in plain)


def test_a_workspace_is_allocated_and_freed_during_the_call():
    def event(action, addr, size=0):
        return {"action": action, "addr": addr, "size": size}

    events = [
        event("free_requested", 1, 77),  # of something older
        event("alloc", 2, 100),  # the result, which stays
        event("segment_alloc", 4096, 2**21),
        event("alloc", 3, 500),
        event("alloc", 4, 40),
        event("free_requested", 4, 40),
        event("free_completed", 4, 40),
        event("free_requested", 3, 500),
    ]
    assert freed_sizes(events) == [500, 40]


def test_rows_and_summary(tmp_path):
    case = next(case for case in grid() if case["w"][2] > 1)
    calls = {
        "conv_forward": {"workspace_bytes": 3, "temporaries": [2, 1], "peak_bytes": 3},
        "conv_dgrad": {"problem": "x"},
    }
    rows = list(conv_rows([{"case": case, "gpu": GPU, "calls": calls}]))
    assert [row["call"] for row in rows] == list(CALLS)
    assert all(set(row) == set(COLUMNS) for row in rows)
    assert (rows[0]["workspace_bytes"], rows[0]["temporaries"], rows[1]["problem"]) == (3, "2 1", "x")
    assert rows[0]["table_bytes"] is not None
    assert rows[0]["rule_bytes"] is not None
    table = ResultTable(tmp_path / "convs.csv", tuple(COLUMNS))
    for said, took in ((100 * 2**20, 100 * 2**20), (10 * 2**20, 100 * 2**20), (0, 0)):
        table.add({**rows[0], "rule_bytes": said, "table_bytes": None, "workspace_bytes": took, "problem": None})
    lines = summary(table)
    assert problems(lines, SCHEMAS["measure --convs"]) == []
    assert (lines["calls"], lines["rule_near"], lines["rule_low"], lines["without_workspace"]) == (3, "2 of 3", 1, 1)
    assert lines["table_near"] == "0 of 0"
