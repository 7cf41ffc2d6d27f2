"""What the history of a simulation learns from the attempts that end."""

from __future__ import annotations

import pytest

from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling import policies
from cotenant.scheduling.prediction.interference import GpuActivity
from cotenant.sim import cluster
from cotenant.sim import simulate as simulate_module
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.running_attempt import RunningAttempt
from cotenant.sim.memory_source import JobFactory
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import JobProfile, Trace, TraceJob

NO_DELAY = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0)


class Halves:
    def speeds(self, members, gpu_type="", sharing=""):
        return [1.0 / len(members)] * len(members)


class Remembering:
    """A registered policy that keeps hold of the facts it was given."""

    name = "remembering"
    exclusive = False

    def __init__(self, name, **options):
        self._policy = policies.create(name, options)
        self.facts = None

    def decide(self, queue, server):
        return self._policy.decide(queue, server)

    def placer(self, facts=None):
        self.facts = facts
        return self._policy.placer(facts)


def a_trace(count=3, *, duration_s=100.0):
    profile = JobProfile(workload="w", first_peak_bytes=8 * GiB, peak_bytes=8 * GiB, smact=0.3, smocc=0.2, drama=0.1)
    return Trace("same", [TraceJob(submit_s=0.0, duration_s=duration_s, profile=profile) for _ in range(count)])


def run(trace, policy, **changes):
    changes = {"config": NO_DELAY, "interference": Halves(), "estimator": "none", **changes}
    return simulate(trace, cluster.parse("1xA100-40GB"), policy, **changes)


def test_pending_jobs_are_reconsidered_once_their_workload_is_known():
    # Nobody knows what they need, so the first has the GPU alone; then its peak is known, and the others share.
    found = run(a_trace(), "most-memory")
    assert list(found.columns.start_s)[:2] == pytest.approx([0.0, 100.0])
    assert 100.0 < found.columns.start_s[2] <= 131.0
    without = run(a_trace(), "most-memory", learn=False)
    assert list(without.columns.start_s) == pytest.approx([0.0, 100.0, 200.0])


def test_the_history_holds_solo_activity():
    trace = a_trace(1)
    policy = Remembering("exclusive")
    run(trace, policy)
    job = JobFactory(trace, "none")(0)
    assert policy.facts.duration_s(job) == pytest.approx(100.0)
    seen = policy.facts.activity(job)
    assert (seen.smact, seen.smocc, seen.drama) == pytest.approx((0.3, 0.2, 0.1))
    assert policy.facts.demand_bytes(job) == int(8 * GiB * 1.10)


def test_time_with_neighbors_is_not_counted_as_solo_time():
    trace = a_trace(2, duration_s=300.0)
    policy = Remembering("most-memory", warmup_s=0.0)
    run(trace, policy, estimator="oracle")
    job = JobFactory(trace, "oracle")(0)
    assert policy.facts.activity(job).smact is None  # nobody was ever alone
    assert 150.0 < policy.facts.duration_s(job) <= 600.0


def test_co_runs_record_the_size_of_the_gpu():
    seen = []

    class Noting(Remembering):
        def placer(self, facts=None):
            learn = facts.learn_attempts
            facts.learn_attempts = lambda job, ended, jobs: (seen.extend(ended), learn(job, ended, jobs))[1]
            return super().placer(facts)

    run(a_trace(2, duration_s=300.0), Noting("most-memory", warmup_s=0.0), estimator="oracle")
    assert {co_run.gpu_memory_bytes for attempt in seen for co_run in attempt.co_runs} == {40 * GiB}


def test_policies_see_the_same_of_residents_as_in_a_daemon():
    """Once the first has ended its work is known: the policy sees that in the second, which runs by then."""
    seen = []

    class Looking(Remembering):
        def placer(self, facts=None):
            placer = super().placer(facts)
            update = placer.update

            def noted(gpu):
                seen.extend(
                    (resident.job_id, resident.gpus, resident.workload, resident.smact) for resident in gpu.residents
                )
                update(gpu)

            placer.update = noted
            return placer

    policy = Looking("most-memory")
    run(a_trace(3), policy)
    key = policy.facts.activity(JobFactory(a_trace(), "none")(0)).workload
    assert {row[:3] for row in seen} <= {(1, 1, key), (2, 1, key), (3, 1, key)}
    assert {row[3] for row in seen if row[0] == 1} <= {None}
    assert {round(row[3], 3) for row in seen if row[0] == 2} == {0.3}


def test_a_resident_is_updated_once_its_workload_is_known():
    answers = [GpuActivity("w"), GpuActivity("w", smact=0.3)]
    placement = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
    attempt = RunningAttempt(0, JobFactory(a_trace(), "oracle")(0), placement, [], 0.0)
    attempt.predicted = lambda: answers[0]
    assert attempt.as_resident(1.0).smact is None
    del answers[0]
    assert attempt.as_resident(1.0).smact == 0.3


class Glancing:
    """Takes every GPU for shared, and keeps what it is shown of residents."""

    name = "glancing"

    def __init__(self):
        self.shown = []

    def decide(self, queue, server):
        self.shown += [(server.at_s, resident.job_id, resident.smact) for resident in server.gpus[0].residents]
        return policies.create("first-fit").decide(queue, server)


def test_the_solo_activity_of_a_resident_is_shown_while_it_runs():
    profile = JobProfile(workload="w", first_peak_bytes=GiB, peak_bytes=GiB, smact=0.3, smocc=0.2, drama=0.1)
    late = JobProfile(workload="v", first_peak_bytes=GiB, peak_bytes=GiB, smact=0.6, smocc=0.2, drama=0.1)
    jobs = [TraceJob(submit_s=at_s, duration_s=500.0, profile=of_job) for at_s, of_job in ((0, profile), (60, late))]
    jobs.append(TraceJob(submit_s=120.0, duration_s=500.0, profile=late))
    policy = Glancing()
    run(Trace("mixed", jobs), policy, estimator="oracle", learn=True)
    known = {(at_s, job_id): smact for at_s, job_id, smact in policy.shown}
    assert known[60.0, 1] == pytest.approx(0.3)
    assert known[120.0, 1] == pytest.approx(0.3), "not what both do together"
    assert known[120.0, 2] is None, "never alone"


def test_an_exclusive_policy_decides_the_same_with_a_history():
    trace = a_trace(2)
    alone = run(trace, "exclusive")
    learning = run(trace, "exclusive", learn=True)
    assert list(alone.columns.end_s) == list(learning.columns.end_s)


def test_an_oom_updates_the_history_as_in_a_daemon():
    """The co-runs before it, and that the job needs more than it held."""
    grows = JobProfile(workload="w", first_peak_bytes=8 * GiB, peak_bytes=60 * GiB, smact=0.3, smocc=0.2, drama=0.1)
    trace = Trace("grows", [TraceJob(submit_s=0.0, duration_s=100.0, profile=grows)])
    policy = Remembering("most-memory")
    run(trace, policy)
    record = policy.facts.record(JobFactory(trace, "none")(0))
    assert record.solo_s >= 50.0
    assert record.smact == pytest.approx(0.3)
    assert record.least_bytes >= 40 * GiB


@pytest.mark.parametrize(("policy", "learns"), [("exclusive", False), ("most-memory", True)])
def test_by_default_policies_that_share_gpus_get_a_history(monkeypatch, policy, learns):
    feeds = []
    feed_class = simulate_module.HistoryFeed
    monkeypatch.setattr(
        simulate_module, "HistoryFeed", lambda *args, **options: feeds.append(policy) or feed_class(*args, **options)
    )
    run(a_trace(1), policy)
    assert bool(feeds) is learns
