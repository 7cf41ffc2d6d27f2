"""Durations and what is left of a job, as intervals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.job import Attempt, CoRun
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling.prediction.durations import duration_of_runs, unknown_left
from cotenant.scheduling.prediction.history import WorkloadHistory
from tests.builders import a_job


def test_a_single_run_says_less_than_many_that_agree():
    one, many = duration_of_runs([1000.0]), duration_of_runs([1000.0] * 8)
    assert one is not None
    assert many is not None
    assert one.expected_s == many.expected_s == 1000.0
    assert one.low_s < many.low_s < 1000.0 < many.high_s < one.high_s


def test_runs_that_differ_widen_the_interval():
    alike, unlike = duration_of_runs([1000.0, 1010.0, 990.0]), duration_of_runs([500.0, 1000.0, 2000.0])
    assert alike is not None
    assert unlike is not None
    assert alike.expected_s == unlike.expected_s == 1000.0
    assert unlike.low_s < 500.0
    assert unlike.high_s > 2000.0
    assert alike.low_s > 700.0
    assert alike.high_s < 1400.0


def test_without_a_run_nothing_is_known():
    assert duration_of_runs([]) is None


def test_what_is_left_shrinks_with_the_work_and_never_ends():
    whole = duration_of_runs([1000.0] * 8)
    assert whole is not None
    half, late = whole.left(500.0), whole.left(5000.0)
    assert half.expected_s == 500.0
    assert half.low_s < 500.0 < half.high_s
    assert late == (100.0, 500.0, 2500.0)


@pytest.mark.parametrize("pace", [1.0, 60.0])
def test_unknown_work_has_longer_left_the_longer_it_ran(pace):
    early, late = unknown_left(600.0 / pace, pace=pace), unknown_left(86400.0 / pace, pace=pace)
    assert early.expected_s == pytest.approx(3000.0 / pace)
    assert late.expected_s == pytest.approx(43200.0 / pace)
    assert early.low_s < early.expected_s < early.high_s
    assert (late.low_s, late.high_s) > (early.low_s, early.high_s)


def test_steps_tell_what_was_lost_to_a_neighbor():
    """At half of its rate alone for 1,000 s it lost 500 s, whatever is predicted of its neighbor."""
    history = WorkloadHistory()
    co_runs = (
        CoRun(neighbor_ids=(), seconds=100.0, steps_hz=10.0),
        CoRun(neighbor_ids=(7,), seconds=1000.0, steps_hz=5.0),
    )
    place = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
    attempt = Attempt(number=1, placement=place, placed_at_s=0.0, started_at_s=0.0, co_runs=co_runs)
    job = replace(a_job(1), attempts=(attempt,))
    jobs = {1: job, 7: a_job(7)}
    assert history.worked_s(job, job.attempts[-1], 1100.0, jobs) == pytest.approx(600.0)
