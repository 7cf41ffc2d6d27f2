"""When to look for a move: soon after a change, not twice in a minute, and not again while nothing has changed."""

from __future__ import annotations

import math

import pytest

from cotenant.scheduling.move_watch import MoveTimer
from cotenant.scheduling.placement.composition import MoveRule

RULE = MoveRule(settle_s=15.0, period_s=60.0, min_run_s=300.0, quiet_s=3600.0)


def looked(at_s, *started_s):
    timer = MoveTimer(RULE)
    timer.changed(at_s)
    timer.looked(at_s, started_s)
    return timer


def test_no_look_is_due_before_the_first_change():
    assert MoveTimer(RULE).due_s == math.inf


def test_a_look_follows_a_change_once_samples_show_it():
    timer = MoveTimer(RULE)
    timer.changed(100.0)
    assert timer.due_s == 115.0
    timer.changed(110.0)
    assert timer.due_s == 115.0, "a later change does not delay it"


def test_looks_are_a_period_apart():
    timer = looked(100.0)
    timer.changed(101.0)
    assert timer.due_s == 160.0
    timer = looked(100.0)
    timer.changed(200.0)
    assert timer.due_s == 215.0


def test_without_a_change_there_is_a_look_when_a_job_may_be_moved_or_after_an_hour():
    assert looked(1000.0).due_s == 4600.0
    assert looked(1000.0, 650.0, 900.0, 800.0).due_s == 1100.0, "300 s after the start of the second one"
    assert looked(1000.0, 720.0).due_s == 1060.0, "but not within a minute of this look"


@pytest.mark.parametrize("pace", [1.0, 60.0])
def test_times_are_in_gpu_time(pace):
    timer = MoveTimer(RULE, pace=pace)
    timer.changed(0.0)
    assert timer.due_s == 15.0 / pace
    timer.looked(10.0, [10.0])
    assert timer.due_s == 10.0 + 300.0 / pace
    timer.changed(10.0)
    assert timer.due_s == 10.0 + 60.0 / pace


def test_a_clock_that_was_set_back_delays_no_look():
    timer = looked(10_000.0)
    timer.reset()
    assert timer.due_s == -math.inf
