"""Dependencies of every kind, arrays, quotas, begin times, updates and requeues, through the manager."""

from __future__ import annotations

import pytest

from builders import a_gpu, a_spec
from cotenant.core.events import (
    AttemptExited,
    AttemptPlaced,
    AttemptStarted,
    EstimateReady,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobSubmitted,
    JobUpdated,
    Launch,
    RequestEstimate,
    ServerSampled,
    Stop,
    Tick,
)
from cotenant.core.gpu import GpuSample
from cotenant.core.job import ArrayTask, AttemptExit, Done, Held, OomEvidence, ProcessId, Queued, Running, Starting
from cotenant.core.units import GiB
from cotenant.scheduling.config import Quota
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.policies import create

OK = AttemptExit(exit_code=0, signal=None, reason="exited")
BAD = AttemptExit(exit_code=3, signal=None, reason="exited")
LOST = AttemptExit(exit_code=None, signal=None, reason="lost")
OOM = AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True))
GPUS = tuple(a_gpu(index) for index in range(8))


class Life:
    """A manager over eight GPUs, and what the daemon keeps of its life."""

    def __init__(self, **config):
        self.config = ManagerConfig(estimate=config.pop("estimate", False), **config)
        self.manager = Manager(create("most-memory", {"warmup_s": 0.0}), self.config)
        self.at_s = 100.0
        self.export = []
        self.sample()

    def send(self, kind, job_id=1, **fields):
        event = kind(at_s=self.at_s, cause="test", job_id=job_id, **fields)
        self.export.append(event)
        return self.note(self.manager.handle(event))

    def note(self, commands):
        self.export += [command.placed for command in commands if isinstance(command, Launch)]
        return commands

    def submit(self, job_id, **spec):
        return self.send(JobSubmitted, job_id, spec=a_spec(**{"declared_bytes": GiB, **spec}))

    def sample(self):
        samples = {gpu.uuid: GpuSample(at_s=self.at_s, used_bytes=0, smact=0.0) for gpu in GPUS}
        event = ServerSampled(at_s=self.at_s, cause="test", gpus=GPUS, samples=samples, observed=())
        return self.note(self.manager.handle(event))

    def start(self, job_id, attempt=1):
        self.send(AttemptStarted, job_id, attempt=attempt, process=ProcessId(pid=1, start_ticks=1, boot_id="b"))

    def exit(self, job_id, end=OK, attempt=1):
        return self.send(AttemptExited, job_id, attempt=attempt, exit=end, peak_observed_bytes={})

    def state(self, job_id):
        return self.manager.jobs[job_id].state

    def reason(self, job_id):
        return self.manager.explain(job_id).reason

    def replayed(self):
        again = Manager(create("most-memory", {}), self.config)
        again.restore(self.export)
        return again

    def running(self):
        return sorted(job for job in self.manager.jobs if isinstance(self.state(job), (Starting, Running)))


@pytest.mark.parametrize(
    ("kind", "end", "outcome", "reason"),
    [
        ("after", OK, None, ""),
        ("after", BAD, "cancelled", "dependency 1 failed"),
        ("after_any", OK, None, ""),
        ("after_any", BAD, None, ""),
        ("after_failed", BAD, None, ""),
        ("after_failed", LOST, None, ""),
        ("after_failed", OK, "cancelled", "dependency 1 completed"),
    ],
)
def test_a_dependency_is_satisfied_or_unsatisfiable_by_the_outcome(kind, end, outcome, reason):
    life = Life()
    life.submit(1)
    life.submit(2, **{kind: (1,)})
    assert isinstance(life.state(2), Queued)
    life.exit(1, end)
    state = life.state(2)
    assert (isinstance(state, Done) and state.outcome) == (outcome or False)
    assert outcome is None or state.reason == reason
    assert (life.running() == [2]) == (outcome is None)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"after": (1,)}, "waits for job 1 to complete"),
        ({"after": (1, 2)}, "waits for jobs 1, 2 to complete"),
        ({"after_any": (1,)}, "waits for job 1 to end"),
        ({"after_failed": (1,), "after": (2,)}, "waits for job 2 to complete, and for job 1 to fail"),
        ({"singleton": True}, "waits for jobs 1, 2 of the same name to end"),
    ],
)
def test_explain_names_the_dependency(spec, sentence):
    life = Life()
    life.submit(1)
    life.submit(2)
    life.submit(3, **spec)
    assert life.reason(3) == sentence


def test_dependencies_already_decided_at_submission():
    life = Life()
    life.submit(1)
    life.exit(1, BAD)
    life.submit(2, after_any=(1,))
    life.submit(3, after=(1,))
    life.submit(4, after_failed=(1,))
    assert life.running() == [2, 4]
    assert life.state(3).reason == "dependency 1 failed"


def test_a_singleton_waits_for_older_jobs_of_its_name_and_user():
    life = Life()
    life.submit(1, name="a")
    life.submit(2, name="b", singleton=True)
    life.submit(3, name="a", singleton=True, uid=7)
    life.submit(4, name="a", singleton=True)
    life.submit(5, name="a", singleton=True)
    assert life.running() == [1, 2, 3]
    life.exit(1, BAD)
    assert life.running() == [2, 3, 4]
    life.send(JobCancelled, 4)
    life.exit(4, AttemptExit(exit_code=None, signal=15, reason="stopped"))
    assert life.running() == [2, 3, 5]


def test_a_finished_job_re_examines_only_singletons_of_its_name():
    table = JobTable(ManagerConfig(estimate=False))

    def changed_by(kind, job_id, **fields):
        table.apply(kind(at_s=1.0, cause="test", job_id=job_id, **fields))
        return set(table.take_changed())

    for job_id, singleton in ((1, False), (2, True), (3, False), (4, False)):
        changed_by(JobSubmitted, job_id, spec=a_spec(name="a", singleton=singleton))
    assert changed_by(JobCancelled, 3) == {2, 3}
    assert changed_by(JobCancelled, 2) == {2}
    assert changed_by(JobCancelled, 1) == {1}


def test_a_job_does_not_begin_before_its_time():
    life = Life()
    life.submit(1, begin_at_s=160.0)
    assert (life.running(), life.reason(1)) == ([], "begins in 1m00s")
    life.at_s = 159.0
    assert life.sample() == []
    life.at_s = 160.0
    life.sample()
    assert life.running() == [1]


def test_a_begin_time_is_reached_by_a_tick_and_survives_a_restart():
    life = Life()
    life.submit(1, begin_at_s=102.0)
    again = life.replayed()
    again.handle(Tick(at_s=103.0, cause="test"))
    assert [job.id for job in again.queue()] == [1]


def test_an_array_runs_at_most_its_limit_of_tasks():
    life = Life()
    for i in range(5):
        life.submit(1 + i, array=ArrayTask(array_id=1, index=i, limit=2))
    life.submit(6, array=ArrayTask(array_id=6, index=1))
    life.submit(7)
    assert life.running() == [1, 2, 6, 7]
    assert life.reason(3) == "array 1 runs at most 2 at once"
    life.exit(1)
    assert life.running() == [2, 3, 6, 7]


def test_the_reason_of_a_quota_counts_what_runs_and_what_is_queued_before():
    """It said `has 1` of a user who ran nothing, while an earlier job of the user waited for memory."""
    life = Life(user_quotas={"ann": Quota(max_running=2), "bob": Quota(gpus=1)})
    life.submit(1, declared_bytes=30 * GiB, gpus=8)
    life.submit(2, declared_bytes=30 * GiB)
    life.submit(3)
    life.submit(4, declared_bytes=30 * GiB, user="bob")
    life.submit(5, user="bob")
    assert life.running() == [1]
    assert life.reason(3) == "quota: ann may run 2 jobs at once: 1 running, 1 queued before"
    assert life.reason(5) == "quota: bob may have 1 GPU at once: 0 running, 1 queued before, job 5 needs 1"


def test_quotas_limit_running_jobs_and_gpus_of_a_user():
    life = Life(quota=Quota(max_running=2), user_quotas={"bob": Quota(gpus=3)})
    for i in (1, 2, 3):
        life.submit(i)
    life.submit(4, user="bob", gpus=2)
    life.submit(5, user="bob", gpus=2)
    life.submit(6, user="bob")
    assert life.running() == [1, 2, 4]
    assert life.reason(3) == "quota: ann may run 2 jobs at once: 2 running"
    assert life.reason(5) == "quota: bob may have 3 GPUs at once: 2 running, job 5 needs 2"
    assert life.reason(6) == life.reason(5)  # or one-GPU jobs would pass it for ever
    life.exit(4)
    assert life.running() == [1, 2, 5, 6]


def test_a_quota_admits_the_job_with_the_higher_priority_first():
    life = Life(quota=Quota(max_running=1))
    life.submit(1)
    life.submit(2)
    life.submit(3, priority=5)
    life.exit(1)
    assert life.running() == [3]


def test_a_job_submitted_on_hold_waits_for_its_release():
    life = Life()
    life.submit(1, hold=True)
    assert isinstance(life.state(1), Held)
    assert life.reason(1) == "held: submitted on hold"
    life.send(JobReleased)
    assert life.running() == [1]


def test_an_update_changes_only_pending_jobs():
    life = Life()
    life.submit(1, hold=True)
    life.send(JobUpdated, 1, spec=a_spec(declared_bytes=2 * GiB, priority=3, name="new"))
    job = life.manager.jobs[1]
    assert (job.spec.priority, job.spec.name, type(job.state)) == (3, "new", Held)
    life.send(JobReleased)
    before = life.manager.jobs[1]
    life.send(JobUpdated, 1, spec=a_spec())
    assert life.manager.jobs[1] == before  # it has started
    life.send(JobUpdated, 99, spec=a_spec())
    assert dict(life.replayed().jobs) == dict(life.manager.jobs)


def test_an_update_of_the_declared_memory_requests_a_new_estimate():
    life = Life(estimate=True)
    life.submit(1, hold=True)
    life.send(EstimateReady, 1, estimate=None, error="none")
    assert life.send(JobUpdated, 1, spec=a_spec(declared_bytes=GiB, priority=1)) == []
    (request,) = life.send(JobUpdated, 1, spec=a_spec(declared_bytes=3 * GiB))
    assert isinstance(request, RequestEstimate)
    assert request.spec.declared_bytes == 3 * GiB


def test_an_update_replaces_dependencies():
    life = Life()
    life.submit(1)
    life.submit(2)
    life.submit(3, after=(1,))
    life.send(JobUpdated, 3, spec=a_spec(declared_bytes=GiB, after_any=(2,)))
    life.exit(1, BAD)
    assert isinstance(life.state(3), Queued)  # no longer 1's business
    life.exit(2, BAD)
    assert life.running() == [3]


def test_requeue_of_a_finished_job_runs_it_again():
    life = Life()
    life.submit(1)
    life.exit(1, BAD)
    life.send(JobRequeued)
    assert life.running() == [1]
    job = life.manager.jobs[1]
    assert (len(job.attempts), job.uncounted_attempts) == (2, 1)
    life.exit(1, attempt=2)
    assert life.state(1).outcome == "completed"
    assert dict(life.replayed().jobs) == dict(life.manager.jobs)


def test_requeue_of_a_running_job_stops_it_first():
    life = Life()
    life.submit(1)
    life.start(1)
    (stop,) = life.send(JobRequeued)
    assert isinstance(stop, Stop)
    assert (stop.job_id, stop.cause) == (1, "requeue")
    assert life.send(JobRequeued) == []  # the stop is already requested
    life.exit(1, OK)  # a job that saves its work on SIGTERM and ends well goes on later, too
    assert (life.running(), len(life.manager.jobs[1].attempts)) == ([1], 2)
    assert dict(life.replayed().jobs) == dict(life.manager.jobs)


def test_cancel_overrules_a_requeue():
    life = Life()
    life.submit(1)
    life.send(JobRequeued)
    life.send(JobCancelled)
    life.exit(1, AttemptExit(exit_code=None, signal=15, reason="stopped"))
    assert life.state(1).outcome == "cancelled"
    assert life.send(JobRequeued, 2) == []


def test_attempts_before_a_requeue_do_not_count_against_the_limit():
    life = Life()
    life.submit(1, max_attempts=2)
    life.exit(1, OOM, attempt=1)
    life.exit(1, OOM, attempt=2)
    assert life.state(1).outcome == "oom"
    life.send(JobRequeued)
    life.exit(1, BAD, attempt=3)
    life.send(JobRequeued)
    assert isinstance(life.state(1), Starting)


def test_dependents_of_a_requeued_job_wait_again():
    life = Life()
    life.submit(1)
    life.submit(2, after=(1,), hold=True)
    life.exit(1)
    life.send(JobReleased, 2)
    life.send(JobHeld, 1)
    life = Life()
    life.submit(1)
    life.submit(2, after=(1,), gpus=9)  # more GPUs than there are: it stays
    life.exit(1)
    life.send(JobRequeued)
    assert life.running() == [1]
    assert 2 not in [job.id for job in life.manager.queue()]


@pytest.mark.parametrize(("requeue", "outcome"), [(False, "lost"), (True, None)])
def test_a_lost_attempt_is_retried_if_the_job_allows_requeue(requeue, outcome):
    life = Life()
    life.submit(1, requeue=requeue, max_attempts=2)
    life.exit(1, LOST)
    state = life.state(1)
    assert (isinstance(state, Done) and state.outcome) == (outcome or False)
    if requeue:
        life.exit(1, LOST, attempt=2)
        assert life.state(1).outcome == "lost"


def test_a_placement_of_a_job_that_is_not_pending_is_ignored():
    life = Life()
    life.submit(1)
    placed = life.export[-1]
    assert isinstance(placed, AttemptPlaced)
    assert life.manager.handle(placed) == []
    assert len(life.manager.jobs[1].attempts) == 1
