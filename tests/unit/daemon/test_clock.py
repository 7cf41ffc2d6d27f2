"""Time goes on from where the journal left it, unless that was nonsense."""

from __future__ import annotations

import time

import pytest

from cotenant.daemon.clock import MAX_AHEAD_S, Clock


@pytest.fixture
def wall(monkeypatch):
    """A wall clock and a monotonic one that stand still until they are set."""
    clocks = {"wall": 1000.0, "monotonic": 5.0}
    monkeypatch.setattr(time, "time", lambda: clocks["wall"])
    monkeypatch.setattr(time, "monotonic", lambda: clocks["monotonic"])
    return clocks


@pytest.mark.parametrize(
    ("journal_s", "now_s"),
    [
        pytest.param(0.0, 1000.0, id="no journal"),
        pytest.param(900.0, 1000.0, id="older than now"),
        pytest.param(1600.0, 1600.0, id="the clock was set back"),
        pytest.param(1000.0 + MAX_AHEAD_S + 1, 1000.0, id="the clock had been wrong"),
    ],
)
def test_start(wall, journal_s, now_s):
    assert Clock(not_before_s=journal_s)() == now_s


def test_setting_the_wall_clock_changes_nothing(wall):
    clock = Clock()
    wall["wall"] = 10.0
    wall["monotonic"] = 7.5
    assert clock() == 1002.5
