"""What no schedule beats, on schedules that can be counted by hand, and against schedules that there are."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy")

from benchmarks.scheduler import relaxed_schedule
from benchmarks.scheduler.move_limits import RULES
from benchmarks.scheduler.reassignment import replay
from benchmarks.scheduler.relaxation import limits_of
from benchmarks.scheduler.relaxed_schedule import JobSets, RelaxedSchedule
from cotenant.sim import cluster, traces
from cotenant.sim.interference import standard
from cotenant.sim.metrics import metrics_of
from cotenant.sim.simulate import simulate
from cotenant.sim.traces.transforms import resampled
from worlds import a_profile, a_trace

ONE, TWO = cluster.parse("1xA100-40GB"), cluster.parse("2xA100-40GB")
LARGE = a_profile("large", gib=30, smact=0.9)
SMALL = a_profile("small", gib=3, smact=0.01)


def limits(trace, gpus, makespans=(0.0,)):
    return limits_of(trace, gpus, metrics_of(simulate(trace, gpus, "exclusive")), makespans, step_s=100.0)


def test_jobs_that_fit_no_gpu_together_run_in_turn():
    """The shorter one first: 1,000 s and 3,000 s where exclusive use needs 2,000 s and 3,000 s."""
    found = limits(a_trace((0, 2000, 1, LARGE), (0, 1000, 1, LARGE)), ONE)
    assert found.makespan == pytest.approx(0.0, abs=0.01)
    assert found.jct[0.0] == pytest.approx(4000 / 5000 - 1, abs=0.02)


def test_a_job_that_costs_its_neighbor_nothing_needs_no_gpu_of_its_own():
    light = a_profile("light", gib=30, smact=0.01)
    found = limits(a_trace((0, 2000, 1, light), (0, 2000, 1, SMALL)), ONE)
    assert found.makespan == pytest.approx(2000 / 4000 - 1, abs=0.02)
    assert found.jct[0.0] == pytest.approx(4000 / 6000 - 1, abs=0.02)


def test_a_job_is_on_no_more_gpus_at_once_than_it_has():
    trace = a_trace((0, 2000, 1, LARGE))
    solved = RelaxedSchedule(trace, TWO, JobSets(trace, TWO, standard()), 100.0, None).solve()
    assert solved.bound == pytest.approx(2000, abs=5)
    assert limits(trace, TWO).jct[0.0] == pytest.approx(0.0, abs=0.02)


def test_no_job_works_before_it_arrives():
    trace = a_trace((0, 100, 1, LARGE), (5000, 1000, 1, LARGE))
    assert limits(trace, TWO).makespan == pytest.approx(0.0, abs=0.01)


def test_a_limit_that_no_schedule_meets_is_replaced_by_the_least_makespan():
    found = limits(a_trace((0, 2000, 1, LARGE), (0, 1000, 1, LARGE)), ONE, (0.0, -0.1))
    assert found.jct[-0.1] == pytest.approx(found.jct[0.0], abs=1e-3)


def test_jobs_share_for_as_long_as_their_bound_allows(monkeypatch):
    """At 0.581 of their speed they lose half of their time in 2,388 s, and need 612 s alone after that."""
    monkeypatch.setattr(relaxed_schedule, "EXEMPT", 0.0)
    heavy = a_profile("heavy", gib=10, smact=0.8)
    trace = a_trace((0, 2000, 1, heavy), (0, 2000, 1, heavy))
    assert limits(trace, ONE).makespan == pytest.approx((2388 + 2 * 612) / 4000 - 1, abs=0.01)
    monkeypatch.setattr(relaxed_schedule, "EXEMPT", 1.0)
    assert limits(trace, ONE).makespan == pytest.approx(2000 / 0.581 / 4000 - 1, abs=0.01)


def test_no_schedule_of_the_search_beats_it():
    trace, gpus = resampled(traces.load("t1"), seed=9000), cluster.parse("4xA100-40GB")
    base = metrics_of(simulate(trace, gpus, "exclusive"))
    for rule in (RULES[0], RULES[4]):
        outcome = replay(trace, gpus, rule, 1.5)
        change = outcome.makespan_s / base.makespan_s - 1
        found = limits_of(trace, gpus, base, (change,), step_s=2000.0)
        assert found.makespan <= change
        assert found.jct[change] <= outcome.jct_mean_s / base.jct_mean_s - 1
