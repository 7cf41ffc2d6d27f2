"""Simulated runs, worked out by hand: start times, end times and outcomes of jobs."""

from __future__ import annotations

import math

import pytest

from cotenant.core.errors import UsageError
from cotenant.gpus.power_model import power_model
from cotenant.scheduling.placement.snapshot_adapter import make_placer
from cotenant.scheduling.policies import create
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.sim import cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.history_feed import HistoryFeed
from cotenant.sim.engine.records import COMPLETED, FAILED, NEVER_STARTED, OUT_OF_MEMORY
from cotenant.sim.engine.simulation import Simulation
from cotenant.sim.memory_source import JobFactory
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import Trace, TraceJob
from worlds import NO_DELAY, Halves, a_profile, a_trace, run_eager


def test_a_job_alone_takes_its_duration_launch_delay_included():
    trace = a_trace((5.0, 100.0, 1, a_profile()))
    found = run_eager(trace, config=SimulationConfig())
    assert found.columns.end_s[0] == pytest.approx(105.0)
    assert found.columns.outcome[0] == COMPLETED
    assert 0 < found.totals[0].active_s < found.totals[0].busy_s == pytest.approx(100.0)


def test_neighbors_slow_each_other_down_until_one_ends():
    # Alone for 20 s, then both at half speed: the second's 40 s take 80 s; then the first has 100 - 20 - 40 left.
    trace = a_trace((0.0, 100.0, 1, a_profile("a")), (20.0, 40.0, 1, a_profile("b")))
    found = run_eager(trace)
    assert list(found.columns.end_s) == pytest.approx([140.0, 100.0])
    assert found.totals[0].shared_s == pytest.approx(80.0)
    assert found.totals[0].smact_s == pytest.approx(0.5 * 140.0)


@pytest.mark.parametrize(
    ("gpus", "sharing", "ends_s"),
    [
        pytest.param("2xA100-40GB", "exclusive", [100.0], id="in one server"),
        pytest.param("2*1xA100-40GB", "exclusive", [125.0], id="in two, exclusive"),
        pytest.param("2*1xA100-40GB", "time-sliced", [125.0], id="in two, shared"),
    ],
)
def test_a_gang_across_servers_runs_at_the_cross_node_speed(gpus, sharing, ends_s):
    costly = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, cross_node_speed=0.8)
    trace = a_trace((0.0, 100.0, 2, a_profile("gang")))
    assert list(run_eager(trace, gpus, sharing=sharing, config=costly).columns.end_s) == pytest.approx(ends_s)
    assert list(run_eager(trace, gpus, sharing=sharing).columns.end_s) == [100.0]


@pytest.mark.parametrize("policy", ["exclusive", "most-memory", "marginal-gain"])
@pytest.mark.parametrize(("gpus", "runs_s"), [("1*1xA100-40GB,2*2xA100-40GB", 100.0), ("3*1xA100-40GB", 125.0)])
def test_policies_place_a_gang_in_one_server_if_one_has_room(policy, gpus, runs_s):
    costly = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, cross_node_speed=0.8)
    trace = a_trace((0.0, 100.0, 2, a_profile("gang")))
    found = simulate(trace, cluster.parse(gpus), policy, config=costly)
    assert list(found.columns.run_s) == pytest.approx([runs_s])


def test_a_gang_runs_at_the_speed_of_its_slowest_gpu():
    # The gang has GPU 0 and 1, the other job GPU 0: both at half speed for 40 s, although GPU 1 is not shared.
    trace = a_trace((0.0, 100.0, 2, a_profile("gang")), (0.0, 20.0, 1, a_profile("b")))
    found = run_eager(trace, "2xA100-40GB")
    assert list(found.columns.end_s) == pytest.approx([120.0, 40.0])
    assert [total.smact_s for total in found.totals] == pytest.approx([0.5 * 40 + 0.5 * 80, 0.25 * 40 + 0.5 * 80])


def test_an_allocation_that_fails_ends_the_attempt_and_the_job_is_retried():
    # 30 of 40 GiB are held. The second job needs 20: it runs out of memory twice at once, then waits for an empty GPU.
    trace = a_trace((0.0, 100.0, 1, a_profile("big", 30)), (10.0, 50.0, 1, a_profile("late", 20, reported_gib=8)))
    found = run_eager(trace, estimator="horus")
    assert (list(found.columns.ooms), list(found.columns.attempts)) == ([0, 2], [1, 3])
    assert list(found.columns.end_s) == pytest.approx([100.0, 150.0])
    assert found.columns.retry_wait_s[1] == pytest.approx(90.0)


def test_a_job_may_run_out_of_memory_when_it_grows_later():
    # 2 x 20 GiB fit. At half its work (50 s alone, 100 s at half speed) the first job needs 10 GiB more.
    grows = a_profile("grows", 30, first_gib=20, reported_gib=20)
    trace = a_trace((0.0, 100.0, 1, grows), (0.0, 500.0, 1, a_profile("steady", 20, reported_gib=20)))
    found = run_eager(trace, estimator="horus")
    # It fails at 100 and 200 s, then waits until the other job, which has 400 s left, has ended.
    assert list(found.columns.ooms) == [2, 0]
    assert list(found.columns.lost_s) == pytest.approx([200.0, 0.0])
    assert list(found.columns.end_s) == pytest.approx([700.0, 600.0])
    assert found.columns.retry_wait_s[0] == pytest.approx(400.0)
    assert found.columns.run_s[0] == pytest.approx(300.0)


def test_a_job_larger_than_every_gpu_ends_out_of_memory():
    found = run_eager(a_trace((0.0, 100.0, 1, a_profile("huge", 50, reported_gib=20))), estimator="horus")
    assert found.columns.outcome[0] == OUT_OF_MEMORY
    assert found.columns.attempts[0] == found.columns.ooms[0] >= 2


def test_a_mig_instance_is_slower_even_for_a_job_alone():
    found = run_eager(a_trace((0.0, 10.0, 1, a_profile(gib=2))), "1xA100-40GB/1g.5gb+2g.10gb", sharing="mig")
    assert found.columns.end_s[0] == pytest.approx(40.0)
    alone = simulate(
        a_trace((0.0, 10.0, 1, a_profile(gib=2))),
        cluster.parse("1xA100-40GB/1g.5gb"),
        "exclusive",
        interference=Halves(),
        config=NO_DELAY,
    )
    assert alone.columns.end_s[0] == pytest.approx(40.0)


def test_a_failing_job_of_the_trace_fails_when_it_did():
    trace = Trace("made", [TraceJob(submit_s=0.0, duration_s=30.0, profile=a_profile(), failed=True)])
    found = run_eager(trace)
    assert (found.columns.outcome[0], found.columns.end_s[0]) == (FAILED, pytest.approx(30.0))


def test_a_job_that_can_never_start_does_not_keep_the_run_from_ending():
    found = simulate(a_trace((0.0, 10.0, 3, a_profile())), cluster.parse("2xA100-40GB"), "exclusive")
    assert found.columns.outcome[0] == NEVER_STARTED
    assert math.isnan(found.makespan_s)


def test_jobs_that_can_never_fit_do_not_block_the_queue():
    trace = a_trace(
        (0.0, 10.0, 1, a_profile("huge", 100)), (0.0, 10.0, 3, a_profile("gang")), (1.0, 10.0, 1, a_profile())
    )
    found = simulate(trace, cluster.parse("2xA100-40GB"), "exclusive", config=NO_DELAY)
    assert list(found.columns.outcome) == [NEVER_STARTED, NEVER_STARTED, COMPLETED]
    assert found.columns.end_s[2] == pytest.approx(11.0)


@pytest.mark.parametrize("policy", ["exclusive", "most-memory", "best-fit"])
def test_the_same_seed_gives_the_same_run_and_another_does_not(policy):
    jobs = [(7.0 * i, 300.0 + i, 1 + i % 2, a_profile(f"w{i % 3}", 9, smact=0.3)) for i in range(30)]
    trace = a_trace(*jobs)
    digests = [
        simulate(trace, cluster.parse("3xA100-40GB"), policy, config=SimulationConfig(seed=seed)).digest()
        for seed in (1, 1, 2)
    ]
    assert digests[0] == digests[1]
    assert policy == "exclusive" or digests[0] != digests[2]


def test_sensitivities_are_drawn_from_the_seed():
    trace = a_trace((0.0, 100.0, 1, a_profile("a")), (0.0, 100.0, 1, a_profile("a")))
    plain = run_eager(trace)
    drawn = run_eager(trace, config=SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, sensitivity_sd=0.5, seed=3))
    assert plain.columns.end_s[0] == plain.columns.end_s[1] == pytest.approx(200.0)
    assert drawn.columns.end_s[0] != drawn.columns.end_s[1]


def test_a_fault_interrupts_jobs_and_a_checkpoint_saves_their_work():
    trace = a_trace((0.0, 5000.0, 1, a_profile()))
    faults = {"delay_median_s": 0.0, "delay_p95_s": 0.0, "fault_every_s": 3000.0, "repair_s": 10.0, "seed": 5}
    plain = run_eager(trace, config=SimulationConfig(**faults))
    saved = run_eager(trace, config=SimulationConfig(**faults, checkpoint_s=100.0))
    assert plain.columns.attempts[0] > 1
    assert plain.columns.outcome[0] == saved.columns.outcome[0] == COMPLETED
    assert saved.columns.run_s[0] < plain.columns.run_s[0]
    assert plain.columns.run_s[0] - plain.columns.lost_s[0] == pytest.approx(5000.0)


def test_faults_that_no_job_survives_are_refused():
    """The simulation did not end: 3000 s without a fault are one of 10**13 attempts where there is one each 100 s."""
    faults = SimulationConfig(fault_every_s=100.0, repair_s=10.0)
    with pytest.raises(UsageError, match=r"job 1 of trace `.*` needs 3000 s without a fault") as caught:
        run_eager(a_trace((0.0, 10.0, 1, a_profile()), (0.0, 3000.0, 1, a_profile())), config=faults)
    assert "`checkpoint_s`) at least every 921 s" in caught.value.hint
    with pytest.raises(UsageError, match=r"of its GPUs \(2\)"):  # 500 s on one GPU would be one of 150 attempts
        run_eager(a_trace((0.0, 500.0, 2, a_profile())), gpus="2xA100-40GB", config=faults)
    too_large = a_trace((0.0, 500.0, 4, a_profile()))  # it never starts
    assert run_eager(too_large, config=faults).columns.outcome[0] == NEVER_STARTED
    often = SimulationConfig(fault_every_s=100.0, repair_s=10.0, checkpoint_s=50.0)
    assert run_eager(a_trace((0.0, 3000.0, 1, a_profile())), config=often).columns.outcome[0] == COMPLETED


def test_gpu_seconds_idle_while_a_job_is_pending_are_counted():
    # A gang of three waits 100 s for GPU 0; the other two GPUs are idle meanwhile.
    trace = a_trace((0.0, 100.0, 1, a_profile("a")), (0.0, 10.0, 3, a_profile("gang")))
    found = simulate(trace, cluster.parse("3xA100-40GB"), "exclusive", config=NO_DELAY)
    assert found.columns.start_s[1] == pytest.approx(100.0)
    assert found.idle_while_waiting_s == pytest.approx(200.0)


def test_a_recorded_run_has_every_change_of_every_gpu():
    trace = a_trace((10.0, 100.0, 1, a_profile("a")))
    config = SimulationConfig(delay_median_s=4.0, delay_p95_s=4.0, record=True)
    for policy in ("exclusive", "most-memory"):
        found = simulate(trace, cluster.parse("1xA100-40GB"), policy, config=config)
        assert found.moments is not None
        moments = [(moment.at_s, moment.residents, moment.smact) for moment in found.moments[0]]
        assert moments == [(0.0, 0, 0.0), (10.0, 1, 0.0), (14.0, 1, 0.5), (110.0, 0, 0.0)]


def test_energy_is_idle_power_plus_power_at_work():
    trace = a_trace((0.0, 100.0, 1, a_profile("a", smact=0.5)))
    for policy in ("exclusive", "most-memory"):
        config = SimulationConfig(delay_median_s=10.0, delay_p95_s=10.0)
        found = simulate(trace, cluster.parse("1xA100-40GB"), policy, config=config)
        model = power_model("A100-40GB")
        assert found.totals[0].energy_j == pytest.approx(100 * model.idle_w + 90 * model.work_w * math.sqrt(0.5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window_s": 0.0}, "`window_s` must be > 0, got 0"),
        ({"repair_s": -1.0}, "`repair_s` must be >= 0, got -1"),
        ({"cross_node_speed": 0.0}, "`cross_node_speed` must be > 0 and <= 1, got 0"),
        (
            {"delay_median_s": 9.0, "delay_p95_s": 8.0},
            "the P95 of the launch delay, 8 s, is below its median, 9 s",
        ),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(UsageError) as caught:
        SimulationConfig(**changes)
    assert str(caught.value) == message


@pytest.mark.parametrize(("policy", "largest_group"), [("most-memory", 1), ("marginal-gain", 2), ("gandiva", 2)])
def test_the_history_gets_co_runs_only_if_the_policy_uses_them(monkeypatch, policy, largest_group):
    groups: list[int] = []
    learn_attempts = WorkloadHistory.learn_attempts

    def record(self, job, attempts, jobs):
        groups.extend(1 + len(co_run.neighbor_ids) for attempt in attempts for co_run in attempt.co_runs)
        return learn_attempts(self, job, attempts, jobs)

    monkeypatch.setattr(WorkloadHistory, "learn_attempts", record)
    jobs = [(at_s, 100, 1, a_profile(smact=0.2)) for at_s in (0, 20, 200)]
    simulate(a_trace(*jobs), cluster.parse("1xA100-40GB"), policy, config=NO_DELAY, interference=Halves())
    assert max(groups) == largest_group


def test_solo_activity_leaves_out_the_time_with_neighbors():
    quiet, loud = a_profile("quiet", smact=0.2), a_profile("loud", smact=0.4)
    trace = a_trace((0, 200, 1, quiet), (100, 20, 1, loud))  # they share the GPU from 100 s to 140 s
    records = []
    for minds in (True, False):
        job_of = JobFactory(trace, "oracle")
        feed = HistoryFeed(WorkloadHistory(), job_of, len(trace), minds_company=minds)
        placer = make_placer(create("most-memory", {"warmup_s": 0.0}), feed.history)
        simulation = Simulation(
            trace,
            cluster.parse("1xA100-40GB"),
            placer,
            job_of,
            Halves(),
            config=NO_DELAY,
            power_of=power_model,
            history_feed=feed,
        )
        simulation.run()
        found = feed.history.record(job_of(0))
        records.append((found.solo_s, found.smact))
    assert records[0] == records[1]
    assert records[0] == (180.0, pytest.approx(0.2))
