"""Time goes on from where the journal or the daemon before left it, unless that was nonsense."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from cotenant.core.job import Queued, Running
from cotenant.daemon import clock as clock_module
from cotenant.daemon.clock import CLOCK_FILE, MAX_AHEAD_S, Clock, restored_clock

QUEUED, RUNNING = Queued(since_s=1.0), Running(attempt=1)


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


class TestRestart:
    """The daemon started when both clocks of `wall` were at their start, and again 60 s later."""

    @pytest.fixture
    def restarted(self, wall, tmp_path, monkeypatch):
        monkeypatch.setattr(clock_module.procfs, "boot_id", lambda: "boot-1")

        def start(state, *, last_at_s=0.0):
            jobs = {1: SimpleNamespace(state=state)}
            return restored_clock(tmp_path, SimpleNamespace(jobs=jobs, last_at_s=last_at_s))

        assert start(QUEUED)() == 1000.0
        wall["monotonic"] += 60.0
        return start

    @pytest.mark.parametrize("wall_s", [1060.0, 8260.0, 10.0], ids=["as it was", "set forward", "set back"])
    def test_time_of_running_attempts_goes_on(self, restarted, wall, wall_s):
        wall["wall"] = wall_s
        assert restarted(RUNNING)() == 1060.0

    def test_without_attempts_the_wall_clock_counts(self, restarted, wall):
        wall["wall"] = 8260.0
        assert restarted(QUEUED)() == 8260.0

    def test_after_a_boot_the_wall_clock_counts(self, restarted, wall, monkeypatch):
        monkeypatch.setattr(clock_module.procfs, "boot_id", lambda: "boot-2")
        wall.update(wall=8260.0, monotonic=3.0)
        assert restarted(RUNNING)() == 8260.0

    def test_no_event_is_older_than_the_one_before(self, restarted, wall):
        assert restarted(RUNNING, last_at_s=1070.0)() == 1070.0

    @pytest.mark.parametrize("text", ["", "[]", '{"boot_id": "boot-1", "offset_s": NaN}', "[" * 100_000])
    def test_a_damaged_file_counts_as_none(self, restarted, wall, tmp_path, text):
        (tmp_path / CLOCK_FILE).write_text(text)
        wall["wall"] = 8260.0
        assert restarted(RUNNING)() == 8260.0

    def test_where_it_cannot_be_written_an_older_one_goes(self, restarted, tmp_path, monkeypatch):
        def refuse(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(clock_module.atomic, "write_text", refuse)
        restarted(QUEUED)
        assert not (tmp_path / CLOCK_FILE).exists()
