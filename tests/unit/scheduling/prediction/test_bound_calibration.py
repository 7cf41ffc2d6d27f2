from __future__ import annotations

import math

import pytest

from cotenant.scheduling.prediction.bound_calibration import MAX_FACTOR, BoundCalibration


def after(*slowdowns, bound=1.5, factor=1.0):
    found = BoundCalibration(factor)
    for slowdown in slowdowns:
        found.learn(slowdown, bound)
    return found.factor


def test_the_factor_rises_with_jobs_that_miss_their_bound():
    assert after() == 1.0
    assert after(*[2.0] * 5) == pytest.approx(1.1)
    assert after(*[2.0] * 500) == MAX_FACTOR == pytest.approx(1.6)
    assert after(math.inf) == pytest.approx(1.02)


def test_jobs_that_keep_it_take_that_back_and_no_more():
    assert after(*[2.0] * 10, *[1.0] * 100) == pytest.approx(1.1, abs=0.021)
    assert after(*[2.0] * 10, *[1.0] * 300) == 1.0
    assert after(*[1.0] * 300, 2.0) == pytest.approx(1.02)


def test_one_miss_in_twenty_is_wanted():
    assert after(*[2.0, *[1.0] * 19] * 50, factor=1.3) == pytest.approx(1.3, abs=0.021)


def test_a_slowdown_near_the_bound_is_a_part_of_a_miss():
    assert 1.0 < after(*[1.5] * 20) < after(*[1.6] * 20) < after(*[2.0] * 20)
    assert after(*[1.1] * 100) == 1.0


@pytest.mark.parametrize("bound", [1.0, 1.05])
def test_a_job_that_lost_nothing_missed_nothing(bound):
    assert after(*[1.0] * 100, bound=bound) == 1.0


def test_its_state_is_the_factor_before_it_was_rounded():
    first = BoundCalibration()
    first.learn(2.0, 1.5)
    second = BoundCalibration(first.state())
    assert second.state() == first.state() > 1.0
    assert first.state() != first.factor
    assert BoundCalibration(0.2).factor == 1.0
    assert BoundCalibration(9.0).factor == MAX_FACTOR
