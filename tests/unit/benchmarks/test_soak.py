"""How the soak measures the wait of a retry."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ENDED = {"ended_at": "1970-01-01T00:00:10Z"}


def placed(at_s, *, gpus=1, promised=8, sharing="time-sliced"):
    fields = {"placed_at": f"1970-01-01T00:00:{at_s}Z", "gpu_uuids": ["GPU"] * gpus, "sharing": sharing}
    return {**fields, "promised_bytes": promised}


@pytest.mark.parametrize(
    ("later", "rooms", "wait_s"),  # rooms: when, available on all GPUs, on empty ones
    [
        pytest.param(placed(30), [(5, [40], [40]), (20, [4], []), (25, [9, 4], [])], 5.0, id="since there was room"),
        pytest.param(placed(30), [(12, [7], []), (20, [4], [])], 0.0, id="took it between two looks"),
        pytest.param(placed(30, gpus=2), [(12, [40, 4], []), (28, [9, 8], [])], 2.0, id="room on both GPUs"),
        pytest.param(placed(30, sharing="exclusive"), [(12, [40], [7]), (27, [40], [9])], 3.0, id="on an empty one"),
        pytest.param(placed(30), [(30, [40], [])], 0.0, id="looked at when it was there already"),
    ],
)
def test_wait_for_room(monkeypatch, later, rooms, wait_s):
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    soak = importlib.import_module("benchmarks.daemon.soak")
    assert soak.wait_for_room_s(ENDED, later, rooms) == wait_s
