"""Time slices: whose, when the signal comes, and where the job goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job
from cotenant.core.job import Attempt, AttemptExit, Queued
from cotenant.core.placement import Placement
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.placement import orders
from cotenant.scheduling.recovery import TIME_SLICE_STOP, after_exit
from cotenant.scheduling.time_limits import TimeLimits

HOUR = 3600.0


def running(job_id=1, *, own_s=None, limit_s=None):
    job = a_job(job_id, 4)
    placement = Placement(job_id=job_id, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=2**30)
    attempt = Attempt(number=1, placement=placement, placed_at_s=0.0, started_at_s=0.0)
    return replace(job, spec=replace(job.spec, time_slice_s=own_s, time_limit_s=limit_s), attempts=(attempt,))


def stops(job, at_s, *, others_wait=True, **settings):
    limits = TimeLimits(ManagerConfig(**settings))
    limits.watch(job)
    return [(why, grace_s) for _, why, grace_s in limits.overdue({job.id: job}, at_s, others_wait=others_wait)]


@pytest.mark.parametrize(
    ("own_s", "everybody_s", "at_s", "found"),
    [
        pytest.param(None, 12 * HOUR, 12 * HOUR - 601, [], id="before the notice"),
        pytest.param(None, 12 * HOUR, 12 * HOUR - 600, [(TIME_SLICE_STOP, 600.0)], id="notice, then the end"),
        pytest.param(2 * HOUR, 12 * HOUR, 2 * HOUR, [(TIME_SLICE_STOP, 600.0)], id="its own is shorter"),
        pytest.param(24 * HOUR, 12 * HOUR, 12 * HOUR, [(TIME_SLICE_STOP, 600.0)], id="everybody's is the limit"),
        pytest.param(None, None, 99 * HOUR, [], id="no slice"),
        pytest.param(600.0, None, 299.0, [], id="a short slice has a notice of half of it"),
        pytest.param(600.0, None, 300.0, [(TIME_SLICE_STOP, 300.0)], id="from its half on"),
    ],
)
def test_the_signal_comes_before_the_end_of_the_slice(own_s, everybody_s, at_s, found):
    job = running(own_s=own_s)
    assert stops(job, at_s, time_slice_s=everybody_s, time_slice_notice_s=600.0) == found


def test_a_slice_ends_only_for_others_and_a_limit_always():
    assert stops(running(), 13 * HOUR, others_wait=False, time_slice_s=12 * HOUR) == []
    limited = running(limit_s=HOUR)
    assert stops(limited, HOUR, others_wait=False, time_slice_s=12 * HOUR) == [("timeout", 10.0)]


def test_without_a_notice_the_grace_begins_at_the_end():
    assert stops(running(own_s=HOUR), HOUR - 1) == []
    assert stops(running(own_s=HOUR), HOUR) == [(TIME_SLICE_STOP, 120.0)]


def test_a_stop_is_repeated_after_six_graces_and_forgotten_with_the_attempt():
    limits, job = TimeLimits(ManagerConfig()), running(own_s=HOUR)
    limits.watch(job)
    sent = [bool(list(limits.overdue({1: job}, HOUR + at_s, others_wait=True))) for at_s in (0, 1, 719, 720)]
    assert sent == [True, False, False, True]
    limits.forget(1)
    assert list(limits.overdue({1: job}, 2 * HOUR, others_wait=True)) == []


def test_a_job_that_leaves_before_the_end_of_its_slice_is_queued_last():
    job = running()
    end = AttemptExit(exit_code=0, signal=None, reason="stopped", detail=TIME_SLICE_STOP)
    stopped = after_exit(job, replace(job.attempts[0], ended_at_s=11 * HOUR, exit=end))
    assert isinstance(stopped.state, Queued)
    waiting = a_job(2, 4, at_s=10 * HOUR)
    for order in (orders.fifo, orders.retries_first):
        assert order(waiting) < order(stopped)
