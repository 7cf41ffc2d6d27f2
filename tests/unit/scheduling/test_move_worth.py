"""What a move must be worth: gains that are too small or too short, and which of several moves comes first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_snapshot, an_estimate
from cotenant.core.job import Attempt, AttemptExit
from cotenant.core.placement import Placement
from cotenant.scheduling import policies
from cotenant.scheduling.checkpoints import MOVE_STOP
from cotenant.scheduling.moves import MAX_WAITING, RunningJob, move_planner
from cotenant.scheduling.prediction.durations import duration_of_runs
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.prediction.interference import GpuActivity

RAN_S = 600.0
LEFT_UNKNOWN_S = 3000.0
"""Of a job that nobody has seen before, after `RAN_S`."""
COST_S = 120.0
"""Twice what a move costs that nobody has measured."""


def learned(history, job, ran_s):
    attempt = Attempt(
        number=1,
        placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=2**33),
        placed_at_s=0.0,
        started_at_s=0.0,
        ended_at_s=ran_s,
        exit=AttemptExit(exit_code=0, signal=None, reason="exited"),
    )
    history.learn(replace(job, attempts=(attempt,)), {})


def running(job_id, *, ran_s=RAN_S, movable=True, gpus=1):
    signal = "TERM" if movable else None
    job = a_job(job_id, 10, checkpoint_signal=signal, gpus=gpus, command=(f"job-{job_id}",))
    return RunningJob(job, ran_s, lambda: ran_s)


def gpu(index, *residents):
    return a_snapshot(index, residents=residents, at_s=RAN_S, smact=0.5)


def resident(job_id, smact, *, gib=10, **fields):
    return a_resident(gib, gib, job_id=job_id, smact=smact, first_active_at_s=1.0, **fields)


def planned(gpus, jobs, waiting=(), *, history=None, pace=1.0, **options):
    found = move_planner(policies.create("marginal-gain", options), history or WorkloadHistory(), pace=pace)
    return found.plan(gpus, {job.job.id: job for job in jobs}, waiting, {}, RAN_S)


@pytest.mark.parametrize(("left_s", "is_moved"), [(250.0, False), (400.0, True)])
def test_a_gain_of_a_third_must_last_for_three_times_the_cost(left_s, is_moved):
    history, job = WorkloadHistory(), running(1)
    learned(history, job.job, RAN_S + left_s)
    gpus = (gpu(0, resident(1, 0.54), resident(2, 0.54)), gpu(1))
    move = planned(gpus, [job, running(2, movable=False)], history=history)
    assert (move is not None) == is_moved
    if move is not None:
        gain = float(move.reason.split()[1])
        assert 0.3 <= gain < 0.4


def test_the_move_that_is_worth_most_is_the_first():
    heavy, less = gpu(0, resident(1, 0.9), resident(2, 0.9)), gpu(1, resident(3, 0.75), resident(4, 0.75))
    jobs = [running(number) for number in (1, 2, 3, 4)]
    move = planned((heavy, less, gpu(2)), jobs)
    assert move is not None
    assert move.job_id in (1, 2)


def test_room_must_gain_as_much_as_a_shared_gpu_must():
    gpus = (gpu(0, resident(1, 0.6, gib=30), resident(2, 0.4, gib=5)),)
    jobs = [running(1), running(2, movable=False)]
    lighter = replace(a_job(9), estimate=an_estimate(15, smact=0.5))
    assert planned(gpus, jobs, [lighter]) is None
    move = planned(gpus, jobs, [lighter], min_gain=0.2)
    assert move is not None
    assert move.reason == f"{MOVE_STOP}: room for job 9, +0.21 of speed"


def test_how_long_a_job_stays_is_in_gpu_time():
    crowded, fixed = (gpu(0, resident(1, 0.9), resident(2, 0.9)), gpu(1)), running(2, movable=False)
    assert planned(crowded, [running(1, ran_s=29.0), fixed], pace=10.0) is None
    assert planned(crowded, [running(1, ran_s=31.0), fixed], pace=10.0) is not None


@pytest.mark.parametrize(("held_gib", "is_moved"), [(20, True), (35, False)])
def test_a_job_goes_where_it_has_the_memory_that_it_was_promised(held_gib, is_moved):
    gpus = (gpu(0, resident(1, 0.5), resident(2, 0.9)), gpu(1, resident(3, 0.05, gib=held_gib)))
    jobs = [running(1), *(running(number, movable=False) for number in (2, 3))]
    assert (planned(gpus, jobs) is not None) == is_moved


@pytest.mark.parametrize(("part", "is_moved"), [(0.98, True), (1.02, False)])
def test_a_turn_is_for_a_job_that_is_short_at_the_upper_end_of_its_interval(part, is_moved):
    """Its time and the cost must be at most half of what the other has left."""
    reach = duration_of_runs([100.0]).high_s / 100.0
    history, short = WorkloadHistory(), a_job(9, 10, exclusive=True, command=("short",))
    learned(history, short, part * (LEFT_UNKNOWN_S / 2.0 - COST_S) / reach)
    whole = (gpu(0, resident(1, 0.6, gib=30, sharing="exclusive")),)
    assert (planned(whole, [running(1)], [short], history=history) is not None) == is_moved


def test_a_gang_that_finds_room_elsewhere_counts_that():
    """Its GPUs gain as much as it loses, but it goes on beside two light jobs."""
    gang = resident(1, 0.2, gpus=2)
    gpus = (gpu(0, gang), gpu(1, gang), gpu(2, resident(2, 0.1, gib=20)), gpu(3, resident(3, 0.1, gib=20)))
    jobs = [running(1, gpus=2), *(running(number, movable=False) for number in (2, 3))]
    move = planned(gpus, jobs, [a_job(number, 35) for number in (8, 9)])
    assert move is not None
    assert move.reason.startswith(f"{MOVE_STOP}: room for 2 jobs that wait, +")


def test_speeds_that_were_learned_since_the_last_look_count():
    history = WorkloadHistory()
    found = move_planner(policies.create("marginal-gain", {}), history)
    pair = [resident(number, 0.2, workload=name) for number, name in ((1, "victim"), (2, "aggressor"))]
    gpus, jobs = (gpu(0, *pair), gpu(1)), {1: running(1), 2: running(2, movable=False)}
    assert found.plan(gpus, jobs, (), {}, RAN_S) is None
    activities = [GpuActivity("victim", 0.2), GpuActivity("aggressor", 0.2)]
    for _ in range(20):
        history.interference.learn(activities, [3.0, 1.0], spread=0.05)
    assert found.plan(gpus, jobs, (), {}, RAN_S) is not None


@pytest.mark.parametrize(("ahead", "is_moved"), [(MAX_WAITING - 1, True), (MAX_WAITING, False)])
def test_only_the_first_jobs_that_wait_are_looked_at(ahead, is_moved):
    gpus = (gpu(0, resident(1, 0.6, sharing="exclusive")), gpu(1))
    too_large = [a_job(100 + number, 80) for number in range(ahead)]
    gang = a_job(9, 10, gpus=2, exclusive=True)
    assert (planned(gpus, [running(1)], [*too_large, gang]) is not None) == is_moved


def test_of_two_jobs_the_one_with_more_left_gives_a_turn():
    history, short, longer = WorkloadHistory(), a_job(9, 10, exclusive=True, command=("short",)), running(2)
    learned(history, short, 100.0)
    learned(history, longer.job, RAN_S + 2.0 * LEFT_UNKNOWN_S)
    gpus = tuple(gpu(place, resident(place + 1, 0.6, gib=30, sharing="exclusive")) for place in (0, 1))
    move = planned(gpus, [running(1), longer], [short], history=history)
    assert move is not None
    assert move.job_id == 2
