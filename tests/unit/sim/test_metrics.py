"""Figures of a run, against hand-worked ones; and the published derivation of exclusive use."""

from __future__ import annotations

import csv
import math
from dataclasses import replace

import pytest

from cotenant.core.units import GiB
from cotenant.sim import cluster, metrics, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.evaluation import Experiment, evaluate
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import JobProfile, Trace, TraceJob
from shared_data import SHARED_DATA

REFERENCE = SHARED_DATA / "carma" / "exclusive_fifo_reference.csv"
NAMES = {
    "t1": "philly_trace_t1",
    "t2": "philly_trace_t2",
    "heavy-60": "philly_heavy_60_tasks",
    "mix-90": "philly_mix_90_tasks",
}
# Makespan, mean wait, mean JCT in minutes: the `aegis` rows of that table, for machines that do not have it.
DERIVED = {
    "t1": (436.0, 113.7, 138.1),
    "t2": (521.7, 76.1, 104.9),
    "heavy-60": (583.3, 204.2, 238.4),
    "mix-90": (666.0, 167.5, 191.6),
}


@pytest.mark.parametrize("name", DERIVED)
def test_exclusive_first_come_first_served_is_the_published_derivation(name):
    found = metrics.metrics_of(simulate(traces.load(name), cluster.parse("4xA100-40GB"), "exclusive"))
    minutes = (found.makespan_s / 60, found.wait_mean_s / 60, found.jct_mean_s / 60)
    assert minutes == pytest.approx(DERIVED[name], rel=0.001)
    assert (found.ooms, found.within_bound, found.shared) == (0, 1.0, 0.0)


@pytest.mark.skipif(not REFERENCE.is_file(), reason="the shared tables are not beside this checkout")
@pytest.mark.parametrize("name", NAMES)
def test_the_derivation_is_that_of_the_table(name):
    with REFERENCE.open(newline="") as file:
        row = next(
            row for row in csv.DictReader(file) if (row["trace"], row["duration_source"]) == (NAMES[name], "aegis")
        )
    assert DERIVED[name] == (float(row["makespan_min"]), float(row["mean_wait_min"]), float(row["mean_jct_min"]))


class Halves:
    def speeds(self, members, gpu_type="", sharing=""):
        return [1.0 / len(members)] * len(members)


def a_run(*, gpus="1xA100-40GB"):
    profile = JobProfile(workload="w", first_peak_bytes=8 * GiB, peak_bytes=8 * GiB, smact=0.4, smocc=0.2, drama=0.1)
    jobs = [TraceJob(submit_s=at, duration_s=run, profile=profile) for at, run in ((0.0, 100.0), (0.0, 100.0))]
    config = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, record=True)
    trace = Trace("two", jobs)
    from cotenant.scheduling import policies

    policy = policies.create("most-memory", {"warmup_s": 0.0, "smact_limit": 1.0})
    return simulate(trace, cluster.parse(gpus), policy, interference=Halves(), config=config)


def test_metrics_of_two_jobs_that_share_a_gpu():
    found = metrics.metrics_of(a_run())
    assert (found.jobs, found.ended, found.makespan_s) == (2, 2, pytest.approx(200.0))
    assert (found.wait_mean_s, found.execution_mean_s, found.jct_mean_s) == (0.0, 200.0, 200.0)
    assert (found.slowdown_mean, found.slowdown_p95, found.within_bound) == (2.0, 2.0, 0.0)
    # Two jobs on one GPU all the time: a fair share is half of it, and that is what they got.
    assert (found.fairness_mean, found.fairness_p95) == (pytest.approx(1.0), pytest.approx(1.0))
    assert (found.smact, found.smocc, found.drama) == pytest.approx((0.4, 0.2, 0.1))
    assert found.memory == pytest.approx(16 / 40)
    assert found.shared == 1.0
    assert found.power_mean_w == pytest.approx(49.5 + 225.6 * (1 - (1 - math.sqrt(0.4)) ** 2))
    assert found.energy_j == pytest.approx(200 * found.power_mean_w)


def test_a_failed_attempt_counts_as_lost_time_and_its_wait_as_waiting():
    # Both are told to need 20 GiB; at half its work, after 100 s in company, the first wants 30 and dies. The other has
    # 450 s left then, and it has to wait for these: 650 s in all, of which 100 are its execution.
    grows, steady = (
        JobProfile(
            workload=name,
            first_peak_bytes=20 * GiB,
            peak_bytes=peak * GiB,
            smact=0.4,
            reported_bytes={"horus": 20 * GiB},
        )
        for name, peak in (("grows", 30), ("steady", 20))
    )
    trace = Trace(
        "two",
        [
            TraceJob(submit_s=0.0, duration_s=100.0, profile=grows),
            TraceJob(submit_s=0.0, duration_s=500.0, profile=steady),
        ],
    )
    config = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, restart_s=0.0)
    options = {"warmup_s": 0.0, "smact_limit": 1.0}
    run = simulate(
        trace,
        cluster.parse("1xA100-40GB"),
        "most-memory",
        options=options,
        estimator="horus",
        interference=Halves(),
        config=config,
    )
    found = metrics.metrics_of(run)
    assert (found.ooms, found.jobs_with_oom, found.ended) == (1, 1, 2)
    assert found.jct_mean_s == pytest.approx((650.0 + 550.0) / 2)
    assert found.execution_mean_s == pytest.approx((100.0 + 550.0) / 2)
    assert found.wait_mean_s == pytest.approx(450.0 / 2)
    assert found.retry_wait_mean_s == pytest.approx(450.0)
    assert found.lost_gpu_s == pytest.approx(100.0)


def test_jobs_at_the_max_slowdown_are_within_the_bound():
    assert metrics.metrics_of(a_run(), max_slowdown=2.0).within_bound == 1.0


@pytest.mark.parametrize(
    ("values", "q", "found"),
    [([3.0, 1.0, 2.0], 0.5, 2.0), ([0.0, 10.0], 0.95, 9.5), ([4.0], 0.9, 4.0), ([1.0, 2.0, 3.0, 4.0], 1.0, 4.0)],
)
def test_quantiles_lie_between_neighbors(values, q, found):
    assert metrics.quantile(values, q) == pytest.approx(found)


def test_means_and_quantiles_of_nothing_are_nan():
    assert math.isnan(metrics.quantile([], 0.5))
    assert math.isnan(metrics.mean([]))
    assert metrics.interval([math.nan, 2.0]).mean == 2.0


def test_a_gpu_series_holds_the_mean_of_each_step():
    series = metrics.gpu_series(a_run(), 0, step_s=150.0)
    assert [point[0] for point in series] == [0.0, 150.0]
    assert [point[1] for point in series] == pytest.approx([0.4, 0.4 * 50 / 150])
    assert [point[2] for point in series] == pytest.approx([0.4, 0.4 * 50 / 150])
    with pytest.raises(ValueError, match="not recorded"):
        metrics.gpu_series(replace(a_run(), moments=None), 0, step_s=10.0)


def test_policies_are_compared_pair_by_pair_on_the_same_bootstraps():
    setting = Experiment(trace=traces.load("t1"), cluster=cluster.parse("4xA100-40GB"), config=SimulationConfig())
    found = evaluate(setting, ["exclusive", "most-memory"], bootstrap=4, seed=9)
    exclusive, shared = found.results
    assert len(exclusive.samples) == len(shared.samples) == 4
    change = found.change(shared, "jct_mean_s")
    mine = [a.jct_mean_s / b.jct_mean_s - 1 for a, b in zip(shared.samples, exclusive.samples, strict=True)]
    assert change["mean"] == pytest.approx(sum(mine) / 4)
    assert change["low"] <= change["mean"] <= change["high"]
    assert found.change(exclusive, "makespan_s") == {"trace": 0.0, "mean": 0.0, "low": 0.0, "high": 0.0}
    again = evaluate(setting, ["most-memory"], bootstrap=4, seed=9)
    assert again.results[0].samples == shared.samples
    assert again.as_json()["policies"][0]["digest"] == shared.run.digest()
    assert "change" not in again.as_json()["policies"][0]
