"""Time slices in the simulator: who gives way, what is lost, and what it is good for."""

from __future__ import annotations

import pytest

from cotenant.cli.main import main
from cotenant.core.units import GiB
from cotenant.sim import cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.time_slices import MAX_RESTARTS
from cotenant.sim.metrics import metrics_of
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import JobProfile, Trace, TraceJob

HOUR = 3600.0
PROFILE = JobProfile(workload="w", first_peak_bytes=30 * GiB, peak_bytes=30 * GiB, smact=0.5)


def replay(*jobs, **settings):
    """(submitted, duration) in hours of jobs of one GPU each, on one GPU, without launch delays."""
    trace = Trace("t", [TraceJob(submit_s=a * HOUR, duration_s=b * HOUR, profile=PROFILE) for a, b in jobs])
    config = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, time_slice_notice_s=600.0, **settings)
    return simulate(trace, cluster.parse("1xA100-40GB"), "exclusive", config=config)


def ends_h(run):
    return [round(end_s / HOUR, 1) for end_s in run.columns.end_s]


def test_a_long_job_gives_way_and_continues():
    run = replay((0, 30), (1, 1), time_slice_s=12 * HOUR)
    assert ends_h(run) == [31.0, 12.8]  # the signal comes 10 minutes before the 12th hour
    assert metrics_of(run).lost_gpu_s == 0


def test_nobody_gives_way_to_a_job_that_starts_elsewhere():
    jobs = [TraceJob(submit_s=at * HOUR, duration_s=30 * HOUR, profile=PROFILE) for at in (0, 13)]
    config = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, time_slice_s=12 * HOUR)
    run = simulate(Trace("t", jobs), cluster.parse("2xA100-40GB"), "exclusive", config=config)
    assert ends_h(run) == [30.0, 43.0]


def test_without_checkpoints_it_begins_again():
    run = replay((0, 30), (1, 1), time_slice_s=12 * HOUR, slice_checkpoints=False)
    assert ends_h(run) == [42.8, 12.8]
    assert metrics_of(run).lost_gpu_s == pytest.approx(12 * HOUR - 600, abs=2)


def test_nobody_gives_way_to_nobody():
    assert ends_h(replay((0, 30), time_slice_s=12 * HOUR)) == [30.0]
    late = replay((0, 30), (20, 1), time_slice_s=12 * HOUR)
    assert ends_h(late) == [31.0, 21.0]  # its slice was over before the other came


def test_jobs_longer_than_a_slice_end_even_without_checkpoints():
    run = replay((0, 30), (1, 30), time_slice_s=12 * HOUR, slice_checkpoints=False)
    assert run.completed == 2
    assert max(run.columns.attempts) <= MAX_RESTARTS + 1


def test_slices_share_out_the_waiting():
    jobs = [(0, 40), *((1, 0.5) for _ in range(6))]
    plain, sliced = metrics_of(replay(*jobs)), metrics_of(replay(*jobs, time_slice_s=2 * HOUR))
    assert sliced.wait_mean_s < plain.wait_mean_s / 5
    assert sliced.fairness_mean < plain.fairness_mean / 2


def test_the_option_needs_a_slice(capsys):
    assert main(["simulate", "--trace", "t1", "--no-checkpoints"]) == 2
    assert "`--no-checkpoints` needs `--time-slice`" in capsys.readouterr().err
