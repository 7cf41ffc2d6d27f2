"""Schedules that look ahead over the jobs that have arrived."""

from __future__ import annotations

import pytest

pytest.importorskip("scipy")

from benchmarks.scheduler.lookahead import LookaheadPolicy, Rule
from benchmarks.scheduler.online_gap import SCHEDULERS, step, table, with_history
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.simulate import simulate
from cotenant.sim.traces.transforms import resampled
from worlds import a_profile, a_trace

ONE, TWO = cluster.parse("1xA100-40GB"), cluster.parse("2xA100-40GB")
CONFIG = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0)
SHORT, LONG = a_profile("short", gib=30, smact=0.5), a_profile("long", gib=30, smact=0.5)
HEAVY = a_profile("heavy", gib=10, smact=0.8)
DUE = Rule("due", orders=("due",), min_gains=(0.3,), knows_durations=True)
KNOWN, LEARNED = Rule("known", knows_durations=True), Rule("learned")


def makespan_s(trace, gpus, rule, bound=1.5):
    policy = LookaheadPolicy(trace, gpus, rule, bound=bound)
    return simulate(trace, gpus, policy, config=CONFIG, learn=False).makespan_s


def test_the_long_job_starts_first_where_that_ends_earlier():
    trace = a_trace((0, 100, 1, SHORT), (0, 100, 1, SHORT), (0, 200, 1, LONG))
    assert makespan_s(trace, TWO, DUE) == pytest.approx(300)
    assert makespan_s(trace, TWO, KNOWN) == pytest.approx(200)


def test_durations_are_those_of_the_runs_that_have_ended():
    jobs = ((1000, 100, 1, SHORT), (1000, 100, 1, SHORT), (1000, 200, 1, LONG))
    assert makespan_s(a_trace(*jobs), TWO, LEARNED) == pytest.approx(300)
    assert makespan_s(a_trace((0, 100, 1, SHORT), (0, 200, 1, LONG), *jobs), TWO, LEARNED) == pytest.approx(1200)


def test_jobs_that_would_exceed_their_bound_over_the_whole_run_do_not_share():
    trace = a_trace((0, 1000, 1, HEAVY), (0, 1000, 1, HEAVY))
    free = Rule("any set", min_gains=(0.0, 0.9), max_slowdown=9.0, knows_durations=True)
    assert makespan_s(trace, ONE, free) == pytest.approx(2000)
    assert makespan_s(trace, ONE, free, bound=9.0) < 1900


def test_gangs_get_all_of_their_gpus():
    trace = a_trace((0, 100, 1, SHORT), (0, 100, 2, LONG), (0, 100, 1, SHORT))
    assert makespan_s(trace, TWO, KNOWN) == pytest.approx(200)


def test_every_scheduler_has_a_row_and_its_step():
    trace = a_trace((0, 1000, 1, HEAVY), (0, 1000, 1, HEAVY), (100, 100, 1, SHORT))
    lines = table([trace], SCHEDULERS, title="schedule", chained=True)
    assert len(lines) == 2 + len(SCHEDULERS)
    assert step([0.1, 0.3], [0.0, 0.1]) == "+15.0 ± 5.0"
    assert step([0.1], None) == "-"


def test_history_of_other_traces_is_used():
    trace = resampled(traces.load("t1"), seed=1)
    cold, warm = (with_history(count, reports_steps=True)(trace) for count in (0, 2))
    assert warm.columns.start_s != cold.columns.start_s
    assert warm.completed == cold.completed == len(trace)
