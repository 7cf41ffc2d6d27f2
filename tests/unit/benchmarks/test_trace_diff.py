"""Where two lists of allocations part."""

from __future__ import annotations

import pytest

from benchmarks._lib.trace_diff import (
    Alloc,
    compare,
    describe,
    recorded_allocs,
    traced_allocs,
)
from cotenant.core.trace import MemoryEvent
from cotenant.measurement.probe_history import compact_history


def allocs(*sizes, live=None):
    return [Alloc(size, live or 0, "forward", f"line {size}") for size in sizes]


SAME = [10, 20, 30, 40, 50, 60, 70, 80]


@pytest.mark.parametrize(
    ("recorded", "matched", "found"),
    [
        pytest.param(SAME, 8, [], id="equal"),
        pytest.param([10, 20, 99, *SAME[2:]], 8, [((), (99,))], id="one more was recorded"),
        pytest.param([10, 20, *SAME[3:]], 7, [((30,), ())], id="one was not"),
        pytest.param([10, 20, 31, *SAME[3:]], 7, [((30,), (31,))], id="another size"),
        pytest.param([10, 30, 20, *SAME[3:]], 8, [], id="another order"),
    ],
)
def test_differences(recorded, matched, found):
    result = compare(allocs(*SAME), allocs(*recorded))
    assert result.matched == matched
    lines = [
        (tuple(one.size for one in difference.only_traced), tuple(one.size for one in difference.only_recorded))
        for difference in result.differences
    ]
    assert lines == found
    assert result.gave_up_at is None


def test_it_gives_up_where_nothing_agrees_any_more():
    result = compare(allocs(*SAME), allocs(10, 20, *range(1000, 1400)))
    assert (result.matched, result.gave_up_at) == (2, 2)
    assert "not compared after recorded 2" in "\n".join(describe(result))


def test_the_first_drift_of_live_bytes_is_reported_with_its_module():
    ours = [Alloc(10, 10, "forward", "a"), Alloc(20, 30, "backward", "layer.1"), Alloc(5, 99, "step", "c")]
    theirs = [Alloc(10, 10, "forward", ""), Alloc(20, 10**8, "backward", "t.py:3 f"), Alloc(5, 0, "step", "")]
    result = compare(ours, theirs)
    assert result.drift == (ours[1], theirs[1])
    assert "layer.1" in "\n".join(describe(result))
    assert (result.traced_peak_bytes, result.recorded_peak_bytes) == (99, 10**8)


def event(action, storage, size=0, category="", phase="forward", module=""):
    return MemoryEvent(action, storage, size, category, phase, module, 0, 0)


def test_a_trace_counts_live_bytes_and_leaves_out_empty_storages():
    found = traced_allocs(
        [
            event("alloc", 1, 100, "parameter", module="net.fc"),
            event("alloc", 2, 0, "activation"),
            event("alloc", 3, 50, "activation"),
            event("free", 1),
            event("alloc", 4, 7, "temporary"),
        ]
    )
    assert [(item.size, item.live_bytes) for item in found] == [(100, 100), (50, 150), (7, 57)]
    assert found[0].where == "net.fc (parameter)"


def test_a_recorded_history_comes_back_with_phases_and_lines():
    base = 0x7F0000000000
    frames = [
        {"filename": "/opt/torch/lib/site-packages/torch/nn/functional.py", "line": 9, "name": "linear"},
        {"filename": "/opt/torch/train.py", "line": 12, "name": "main"},
    ]
    entries = [
        {"action": "segment_alloc", "addr": base, "size": 2**21, "stream": 0, "time_us": 1, "frames": []},
        {"action": "alloc", "addr": base, "size": 700, "stream": 0, "time_us": 5, "frames": frames},
        {"action": "alloc", "addr": base + 1024, "size": 300, "stream": 0, "time_us": 2_000_000, "frames": []},
        {"action": "free_requested", "addr": base, "size": 700, "stream": 0, "time_us": 2_000_001, "frames": []},
        {"action": "free_completed", "addr": base, "size": 700, "stream": 0, "time_us": 2_000_002, "frames": []},
        {"action": "alloc", "addr": base, "size": 11, "stream": 0, "time_us": 2_000_003, "frames": []},
        {"action": "oom", "size": 5, "device_free": 0, "stream": 0, "time_us": 2_000_004, "frames": []},
    ]
    found = recorded_allocs(compact_history(entries, [("forward", 1.0)]))
    assert [(item.size, item.live_bytes, item.phase, item.where) for item in found] == [
        (700, 700, "load", "train.py:12 main"),
        (300, 1000, "forward", ""),
        (11, 311, "forward", ""),
    ]
