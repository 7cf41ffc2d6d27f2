"""Bounds on makespans: no schedule beats them, and where the best is known they are close."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("scipy", reason="bounds need scipy")

from cotenant.core.errors import UsageError
from cotenant.core.units import GiB
from cotenant.sim import cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.interference import PairTable
from cotenant.sim.limits.bounds import makespan_bound
from cotenant.sim.limits.oracle_search import best_found
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import JobProfile, Trace, TraceJob
from cotenant.sim.traces.carma import measured_a100

NO_DELAY = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0)
ONE = cluster.parse("1xA100-40GB")


def a_trace(*jobs):
    """Jobs as (submit, duration, profile)."""
    return Trace("made-up", [TraceJob(submit_s=at, duration_s=run, profile=kind) for at, run, kind in jobs])


def a_kind(name, gib=10, smact=0.5):
    return JobProfile(workload=name, first_peak_bytes=int(gib * GiB), peak_bytes=int(gib * GiB), smact=smact)


def test_one_job_takes_its_duration():
    found = makespan_bound(a_trace((0.0, 100.0, a_kind("a"))), ONE, config=NO_DELAY)
    assert found.makespan_s == found.critical_path_s == 100.0
    assert found.work_s <= 100.0  # the relaxed program may cut it in two


def test_critical_path_counts_from_submission():
    found = makespan_bound(a_trace((0.0, 10.0, a_kind("a")), (50.0, 100.0, a_kind("a"))), ONE, config=NO_DELAY)
    assert found.critical_path_s == 150.0


def test_two_jobs_that_do_not_fit_together_run_in_turn():
    jobs = [(0.0, 100.0, a_kind("a", gib=30))] * 2
    found = makespan_bound(a_trace(*jobs), ONE, config=NO_DELAY)
    assert found.makespan_s == pytest.approx(200.0 / found.scale)
    assert found.makespan_s > 150.0


def test_a_pair_bounds_the_makespan_by_its_joint_speed():
    """Both run at 0.75 together: 1.5 seconds of work a second, unless three or more gain more."""
    table = PairTable({(a, b): 0.75 for a in "xy" for b in "xy"})
    jobs = [(0.0, 100.0, a_kind(name, gib=15, smact=0.9)) for name in "xy"]
    found = makespan_bound(a_trace(*jobs), ONE, interference=table, config=NO_DELAY)
    played = simulate(a_trace(*jobs), ONE, "first-fit", interference=table, config=NO_DELAY, learn=False)
    assert 0.9 * 133.3 < found.makespan_s <= 133.4
    assert found.makespan_s <= played.makespan_s + 1e-6


def test_sets_that_are_too_large_to_list_are_bounded():
    """Each partner costs 0.6: four run 1.43 times as fast as in turn, but ten run 1.56 times."""
    table = PairTable({("a", "a"): 1 / 1.6})
    jobs = a_trace(*[(0.0, 100.0, a_kind("a", gib=1, smact=0.05))] * 10)
    found = makespan_bound(jobs, ONE, interference=table, config=NO_DELAY)
    options = {"smact_limit": 1.0, "warmup_s": 0.0}
    played = simulate(jobs, ONE, "first-fit", interference=table, config=NO_DELAY, options=options, learn=False)
    assert played.makespan_s == pytest.approx(640.0)
    assert found.makespan_s <= 640.0


def test_later_releases_bound_too():
    jobs = [(0.0, 1.0, a_kind("a", gib=30)), *[(1000.0, 100.0, a_kind("a", gib=30))] * 3]
    found = makespan_bound(a_trace(*jobs), ONE, config=NO_DELAY)
    assert found.release_s == 1000.0
    assert found.work_s > 1200.0


def some_jobs(seed, count=14):
    drawn = random.Random(seed)
    known = [workload for workload in measured_a100().values() if workload.solo_s]
    picks = drawn.choices(known, k=count)
    arrivals = sorted(drawn.uniform(0, 3000) for _ in picks)
    return Trace("drawn", [pick.job(at_s - arrivals[0]) for at_s, pick in zip(arrivals, picks, strict=True)])


@pytest.mark.parametrize("seed", range(6))
def test_no_schedule_beats_the_bound(seed):
    trace = some_jobs(seed)
    gpus = cluster.parse("2xA100-40GB")
    bound = makespan_bound(trace, gpus).makespan_s
    for policy in ("exclusive", "carma", "aegis", "lucid", "sjf-bsbf", "marginal-gain"):
        assert simulate(trace, gpus, policy).makespan_s >= bound - 1e-6, policy
    assert best_found(trace, gpus, tries=12, seed=seed).value_s >= bound - 1e-6


def test_search_finds_shorter_schedules_than_every_policy():
    trace = some_jobs(3)
    gpus = cluster.parse("2xA100-40GB")
    found = best_found(trace, gpus, tries=12)
    assert found.run.makespan_s == found.value_s
    assert 1 <= found.improved_at <= found.tried == 12
    for policy in ("exclusive", "carma", "marginal-gain"):
        assert found.value_s < simulate(trace, gpus, policy).makespan_s, policy


def test_search_keeps_a_slowdown_bound():
    trace = some_jobs(4, count=20)
    gpus = cluster.parse("2xA100-40GB")
    run = best_found(trace, gpus, tries=4, objective="jct", max_slowdown=1.3).run
    slowdowns = [run.columns.run_s[i] / trace.duration_s[i] for i in range(len(trace))]
    assert max(slowdowns) <= 1.3 + 1e-6
    assert sum(run.columns.ooms) == 0


def test_search_is_repeatable():
    trace = some_jobs(5)
    gpus = cluster.parse("2xA100-40GB")
    assert best_found(trace, gpus, tries=5, seed=1).value_s == best_found(trace, gpus, tries=5, seed=1).value_s


@pytest.mark.parametrize(
    ("text", "config", "said"),
    [
        ("1xA100-40GB,1xV100-16GB", None, "no bound for `1xA100-40GB,1xV100-16GB`"),
        ("1xA100-40GB/4g.20gb+3g.20gb", None, "no bound for"),
        ("1xA100-40GB", SimulationConfig(sensitivity_sd=0.5), "no bound with sensitivities"),
    ],
)
def test_inputs_without_a_bound_are_refused(text, config, said):
    with pytest.raises(UsageError, match=said):
        makespan_bound(some_jobs(0, count=3), cluster.parse(text), config=config)


def test_no_bound_without_profiles_or_jobs():
    bare = Trace("bare", [TraceJob(submit_s=0.0, duration_s=5.0)])
    with pytest.raises(UsageError, match="has jobs without activity profiles"):
        makespan_bound(bare, ONE)
    with pytest.raises(UsageError, match="has jobs without activity profiles"):
        best_found(bare, ONE)
    with pytest.raises(UsageError, match="has no jobs"):
        makespan_bound(Trace("none", []), ONE)
