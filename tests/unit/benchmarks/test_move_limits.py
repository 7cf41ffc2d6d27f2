"""What bounds moves: the search that places all jobs anew, and where GPU time goes."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("scipy")

from benchmarks.scheduler.move_limits import least_of, losses, policy_run
from benchmarks.scheduler.reassignment import Rule, replay
from cotenant.sim import cluster, traces
from cotenant.sim.traces.transforms import resampled
from worlds import a_profile, a_trace

ONE, TWO = cluster.parse("1xA100-40GB"), cluster.parse("2xA100-40GB")
FREE, STAY = Rule("free"), Rule("stay", hysteresis=math.inf)
HEAVY = a_profile("heavy", gib=30, smact=0.9)
LARGE = a_profile("large", gib=30, smact=0.1)
SMALL = a_profile("small", gib=3, smact=0.1)


def test_a_job_alone_takes_its_time():
    outcome = replay(a_trace((0, 1000, 1, HEAVY)), ONE, FREE, 1.5)
    assert (outcome.makespan_s, outcome.jct_mean_s) == pytest.approx((1000, 1000), abs=0.01)
    assert (outcome.within, outcome.moves) == (1.0, 0)


def test_jobs_that_do_not_fit_together_run_in_turn():
    outcome = replay(a_trace((0, 1000, 1, LARGE), (0, 500, 1, LARGE)), ONE, STAY, 1.5)
    assert outcome.makespan_s == pytest.approx(1500, abs=0.01)
    assert replay(a_trace((0, 1000, 1, LARGE), (0, 500, 1, SMALL)), ONE, STAY, 1.5).makespan_s < 1100


def test_a_gpu_is_emptied_for_a_gang_that_is_worth_more():
    """Two jobs of one GPU give way to a gang whose weight counts both of its GPUs; they share afterwards."""
    by_gpus = Rule("gangs first", weight=lambda gpus, _left_s: float(gpus**2))
    trace = a_trace((0, 2000, 1, HEAVY), (0, 2000, 1, HEAVY), (100, 1000, 2, HEAVY))
    stays = replay(trace, TWO, STAY, 1.5)
    assert (round(stays.jct_mean_s), stays.moves) == (round((2000 + 2000 + 2900) / 3), 0)
    moved = replay(trace, TWO, by_gpus, 1.5)
    assert (round(moved.jct_mean_s), moved.moves) == (round((3000 + 3000 + 1000) / 3), 2)


def test_a_move_costs_the_job_its_time():
    by_gpus = Rule("gangs first", weight=lambda gpus, _left_s: float(gpus**2), move_s=60.0)
    trace = a_trace((0, 2000, 1, HEAVY), (0, 2000, 1, HEAVY), (100, 1000, 2, HEAVY))
    assert replay(trace, TWO, by_gpus, 1.5).makespan_s == pytest.approx(3060, abs=0.01)


def test_moves_keep_jobs_within_their_bound():
    trace = resampled(traces.load("t1"), seed=9000)
    free, stay = (replay(trace, cluster.parse("4xA100-40GB"), rule, 1.5) for rule in (FREE, STAY))
    assert free.within == 1.0
    assert stay.moves == 0
    assert stay.within < 1.0, "jobs that stay cannot leave a neighbor that came later"


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_losses_are_the_gap_to_the_relaxation(share):
    trace, gpus = resampled(traces.load("t1"), seed=9001), cluster.parse("4xA100-40GB")
    run, least = policy_run(trace, gpus, share), least_of(trace, gpus)
    found = losses(run, least)
    assert sum(found.values()) == pytest.approx(4 * run.makespan_s - least.gpu_s)
    assert all(lost_s >= -1e-6 for name, lost_s in found.items() if name.startswith(("idle", "one job", "jobs share")))


def test_a_gpu_that_is_idle_while_the_last_job_runs_is_lost_and_nothing_else():
    trace = a_trace((0, 1000, 1, HEAVY), (0, 2000, 1, HEAVY))
    run = policy_run(trace, TWO, 0.0, is_known=True)
    found = losses(run, least_of(trace, TWO))
    assert found["idle, none waits, after the last arrival"] == pytest.approx(1000, rel=0.02)
    assert sum(found.values()) == pytest.approx(2 * run.makespan_s - 3000)
