"""How the soak test measures the wait before a retry."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ENDED = {"ended_at": "1970-01-01T00:00:10Z"}


def placed(at_s, *, gpus=1, promised=8, sharing="time-sliced"):
    fields = {"placed_at": f"1970-01-01T00:00:{at_s}Z", "gpu_uuids": ["GPU"] * gpus, "sharing": sharing}
    return {**fields, "promised_bytes": promised}


@pytest.mark.parametrize(
    ("later", "polls", "wait_s"),  # polls: (time, available per GPU, available per empty GPU)
    [
        pytest.param(
            placed(30), [(5, [40], [40]), (20, [4], []), (25, [9, 4], [])], 5.0, id="available since an earlier poll"
        ),
        pytest.param(placed(30), [(12, [7], []), (20, [4], [])], 0.0, id="became available between polls"),
        pytest.param(placed(30, gpus=2), [(12, [40, 4], []), (28, [9, 8], [])], 2.0, id="enough on both GPUs"),
        pytest.param(placed(30, sharing="exclusive"), [(12, [40], [7]), (27, [40], [9])], 3.0, id="on an empty one"),
        pytest.param(placed(30), [(30, [40], [])], 0.0, id="polled after the placement"),
    ],
)
def test_wait_with_enough_memory(monkeypatch, later, polls, wait_s):
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    soak = importlib.import_module("benchmarks.daemon.soak")
    assert soak.wait_with_memory_s(ENDED, later, polls) == wait_s
