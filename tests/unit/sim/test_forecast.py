"""A live queue, played forward."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.job import Attempt, AttemptExit, Done, Held, Running
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling import policies
from cotenant.sim import forecast
from cotenant.sim.engine.config import SimulationConfig
from tests.builders import a_gpu, a_job

NOW_S = 10_000.0
NO_DELAY = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0)


def an_attempt(job_id, uuid, *, began_s, gib=8, ended_s=None, sharing="time-sliced"):
    end = None if ended_s is None else AttemptExit(exit_code=0, signal=None, reason="exited")
    return Attempt(
        number=1,
        placement=Placement(job_id=job_id, gpu_uuids=(uuid,), sharing=sharing, promised_bytes=int(gib * GiB)),
        placed_at_s=began_s,
        started_at_s=began_s,
        peak_observed_bytes={} if ended_s is None else {uuid: int(gib * GiB)},
        ended_at_s=ended_s,
        exit=end,
    )


def running(job_id, *, began_s, uuid="GPU-0", gib=8, sharing="time-sliced", **spec):
    job = a_job(job_id, gib, at_s=began_s, **spec)
    attempt = an_attempt(job_id, uuid, began_s=began_s, gib=gib, sharing=sharing)
    return replace(job, state=Running(attempt=1), attempts=(attempt,))


def done(job_id, *, began_s, ended_s, gib=8, **spec):
    job = a_job(job_id, gib, at_s=began_s, **spec)
    attempt = an_attempt(job_id, "GPU-0", began_s=began_s, ended_s=ended_s, gib=gib)
    return replace(job, state=Done(outcome="completed", at_s=ended_s, code=0), attempts=(attempt,))


def waiting(job_id, gib=8, **spec):
    return a_job(job_id, gib, at_s=NOW_S - 50, **spec)


def play(jobs, *, gpus=1, policy="exclusive", assumed_s=3600.0):
    found = forecast.forecast_input(jobs, [a_gpu(index) for index in range(gpus)], at_s=NOW_S, assumed_s=assumed_s)
    return found, forecast.forecast_starts(found, policies.create(policy), config=NO_DELAY)


def test_a_pending_job_waits_for_the_rest_of_a_running_one():
    jobs = [running(1, began_s=NOW_S - 600, sharing="exclusive"), waiting(2), waiting(3)]
    found, starts = play(jobs)
    assert [job.duration_s for job in found.placed] == [3000.0]
    assert starts == {2: pytest.approx(3000.0), 3: pytest.approx(6600.0)}


def test_a_gang_waits_for_the_last_of_its_gpus():
    jobs = [
        running(1, began_s=NOW_S - 600, sharing="exclusive"),
        running(2, began_s=NOW_S - 2600, uuid="GPU-1", sharing="exclusive"),
        waiting(3, gpus=2),
    ]
    found, starts = play(jobs, gpus=2)
    assert [job.duration_s for job in found.placed] == [3000.0, 1000.0]
    assert starts == {3: pytest.approx(3000.0)}


def test_one_more_gpu_takes_the_next_job():
    jobs = [running(1, began_s=NOW_S - 600, sharing="exclusive"), waiting(2), waiting(3)]
    found, _ = play(jobs)
    starts = forecast.forecast_starts(forecast.with_extra_gpu(found), policies.create("exclusive"), config=NO_DELAY)
    assert starts == {2: 0.0, 3: pytest.approx(3000.0)}


def test_past_durations_of_a_workload_precede_its_time_limit():
    command = ("python", "train.py")
    jobs = [
        done(1, began_s=NOW_S - 900, ended_s=NOW_S - 700, command=command),
        waiting(2, command=command, time_limit_s=7200.0),
        waiting(3, command=("python", "other.py"), time_limit_s=500.0),
        waiting(4, command=("python", "third.py")),
    ]
    found, starts = play(jobs, assumed_s=100.0)
    assert [(job.duration_source, job.duration_s) for job in found.waiting] == [
        ("history", 200.0),
        ("time limit", 500.0),
        ("assumed", 100.0),
    ]
    assert starts == {2: 0.0, 3: pytest.approx(200.0), 4: pytest.approx(700.0)}


def test_an_overdue_job_is_expected_to_end_soon():
    jobs = [running(1, began_s=NOW_S - 9000, sharing="exclusive"), waiting(2)]
    assert play(jobs)[1] == {2: pytest.approx(forecast.MIN_REMAINING_S)}


def test_memory_of_running_jobs_counts_where_gpus_are_shared():
    jobs = [running(1, began_s=NOW_S - 100, gib=30), waiting(2, 8), waiting(3, 8)]
    _, starts = play(jobs, policy="most-memory")
    assert starts[2] == pytest.approx(0.0, abs=30.0)
    assert starts[3] > 1000.0  # 30 + 8 + 8 GiB are too many


def test_held_jobs_and_ended_ones_are_left_out():
    held = replace(waiting(5), state=Held(since_s=NOW_S))
    found, starts = play([held, done(1, began_s=0.0, ended_s=100.0), waiting(2)])
    assert starts == {2: 0.0}
    assert found.placed == ()


def test_a_gang_that_can_never_start_is_reported():
    assert play([waiting(2, gpus=3)], gpus=2)[1] == {2: None}


def test_an_unknown_gpu_is_simulated_as_the_measured_one():
    found, _ = play([waiting(2)])
    assert found.cluster.slots[0].gpu_type == "A100-40GB"
