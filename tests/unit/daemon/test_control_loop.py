"""The loop: kept before done, in one transaction where order does not matter, and sane while nothing can be kept."""

from __future__ import annotations

import contextlib
import math
from concurrent.futures import CancelledError
from dataclasses import replace

import pytest

from builders import a_spec
from cotenant.core.errors import JournalError, NoSuchJob, UsageError
from cotenant.core.estimate import Estimate
from cotenant.core.events import AttemptExited, AttemptStarted, EstimateReady, JobCancelled, JobSubmitted
from cotenant.core.job import Done, Running, Starting
from cotenant.daemon.messages import JobChange, Query, SubmitRequest, WaitRequest, batches
from cotenant.scheduling import policies
from cotenant.scheduling.manager import Manager
from loops import TIMEOUT_S, Bench, exited, started


@pytest.fixture
def bench():
    bench = Bench().start()
    yield bench
    bench.loop.close()


def test_a_decision_is_on_disk_before_its_launch(bench):
    bench.sample()
    assert bench.submit() == [1]
    bench.until(lambda: bench.engine.launched)
    assert bench.engine.launched == [(1, 1, {"SIM": "1"})]
    assert bench.engine.committed_at_launch == [True]
    bench.inbox.put(started(1))
    bench.inbox.put(exited(1))
    bench.until(lambda: isinstance(bench.state(1), Done))
    assert bench.exits == 1
    kinds = [type(event).__name__ for event in bench.disk.replay()]
    assert kinds[0] == "JobSubmitted"
    assert kinds[-2:] == ["AttemptStarted", "AttemptExited"]


def test_an_exit_is_on_disk_before_waiters_are_notified(bench):
    done = []
    bench.services.on_job_done = lambda job: done.append((job.id, bench.disk.is_synced))
    bench.sample()
    bench.submit()
    bench.until(lambda: bench.engine.launched)
    bench.inbox.put(exited(1))
    assert bench.loop.wait(WaitRequest(1, "done")).result(TIMEOUT_S).is_done
    assert done == [(1, True)]


def test_no_waiter_is_notified_of_an_exit_that_could_not_be_written(bench):
    done = []
    bench.services.on_job_done = lambda job: done.append((job.id, bench.disk.is_synced))
    bench.sample()
    bench.submit()
    bench.until(lambda: bench.engine.launched)
    watched = bench.loop.wait(WaitRequest(1, "done"))
    bench.disk.failing = True
    bench.inbox.put(exited(1))
    bench.until(lambda: isinstance(bench.state(1), Done))
    tried = bench.disk.syncs
    bench.until(lambda: bench.disk.syncs > tried)
    assert not done
    assert not watched.done()
    assert bench.loop.journal_error.message == "the disk fails"
    bench.disk.failing = False
    assert watched.result(TIMEOUT_S).is_done
    bench.until(lambda: done)
    assert done == [(1, True)]
    assert bench.loop.journal_error is None


def test_an_exit_and_the_launches_it_allows_are_one_transaction(bench):
    bench.sample()
    bench.submit(a_spec(exclusive=True), a_spec(exclusive=True))
    bench.until(lambda: bench.engine.launched)
    bench.inbox.put(exited(1))
    bench.until(lambda: bench.sample() or len(bench.engine.launched) == 2)
    assert bench.engine.committed_at_launch == [True, True]


def test_a_launch_does_not_block_the_loop(bench):
    bench.sample()
    bench.submit()
    bench.until(lambda: bench.engine.launched)
    bench.inbox.put(started(1))
    bench.until(lambda: isinstance(bench.state(1), Running))
    assert not bench.disk.is_synced
    transactions = len(bench.disk.transactions)
    bench.submit()
    assert bench.disk.on_disk > transactions


def test_an_estimate_does_not_block_the_loop(bench):
    bench.submit(a_spec(declared_bytes=2**30, hold=True))
    bench.until(lambda: any(isinstance(event, EstimateReady) for event in bench.disk.replay()))
    assert bench.disk.on_disk == len(bench.disk.transactions) - 1, "the submission is, the estimate is not yet"
    transactions = len(bench.disk.transactions)
    bench.submit()
    assert bench.disk.on_disk > transactions


def test_submitted_jobs_are_visible_once_they_are_on_disk(bench):
    def look(manager, ids):
        return [manager.jobs[job_id].spec.name for job_id in ids], bench.disk.is_synced

    specs = [a_spec(name="a", hold=True), a_spec(name="b", hold=True)]
    assert bench.loop.submit_and_query(specs, look).result(TIMEOUT_S) == (["a", "b"], True)
    with pytest.raises(ZeroDivisionError):
        bench.loop.submit_and_query(specs, lambda *_: 1 / 0).result(TIMEOUT_S)
    assert len(bench.loop.query(lambda manager: manager.jobs).result(TIMEOUT_S)) == 4, (
        "queued whatever comes of looking"
    )


def test_a_journal_of_the_loop_restores_the_same_jobs(bench):
    bench.sample()
    for i in range(5):
        bench.submit(a_spec(declared_bytes=2**30, name=f"{i}"))
    bench.turn()
    bench.loop.change(JobChange("cancel", 2, "t")).result(TIMEOUT_S)
    bench.inbox.put(exited(1, code=3))
    bench.turn()
    other = Manager(policies.create("most-memory", {}))
    other.restore(bench.disk.replay())
    assert dict(other.jobs) == bench.loop.query(lambda manager: dict(manager.jobs)).result(TIMEOUT_S)


def test_concurrent_submissions_share_a_transaction():
    bench = Bench()
    answers = [bench.loop.submit([a_spec(), a_spec()]) for _ in range(3)]
    bench.start()
    assert [answer.result(TIMEOUT_S) for answer in answers] == [[1, 2], [3, 4], [5, 6]]
    bench.loop.close()
    assert [type(event) for event in bench.disk.transactions[0]] == [JobSubmitted] * 6


def test_groups_keep_the_order_that_matters():
    submit = SubmitRequest((a_spec(),), lambda _, ids: ids)
    change = JobChange("cancel", 1, "t")
    query = Query(lambda _: None)
    inputs = [submit, exited(1), started(2), exited(2), change, submit, query]
    assert list(batches(inputs)) == [[submit, exited(1), started(2), exited(2)], [change], [submit], [query]]


def test_dependency_on_an_unknown_job_is_refused(bench):
    with pytest.raises(NoSuchJob, match="no job 9 to wait for"):
        bench.submit(a_spec(after=(9,)))
    assert bench.submit() == [1]


@pytest.mark.parametrize(
    ("kind", "error"),
    [("release", "job 1 is not held"), ("hold", "job 1 is running, only a queued job can be held")],
)
def test_a_change_without_effect_is_refused(bench, kind, error):
    bench.sample()
    bench.submit()
    bench.until(lambda: isinstance(bench.state(1), Starting))
    with pytest.raises(UsageError, match=error):
        bench.loop.change(JobChange(kind, 1, "t")).result(TIMEOUT_S)


def test_cancel_stops_a_running_attempt_and_its_estimate(bench):
    bench.sample()
    bench.submit()
    bench.until(lambda: bench.engine.launched)
    bench.loop.change(JobChange("cancel", 1, "t")).result(TIMEOUT_S)
    assert bench.engine.stopped == [(1, 1, "cancelled")]
    assert bench.estimates.cancelled == [1]


def test_an_attempt_that_cannot_be_launched_fails_its_job(bench):
    bench.engine.broken = True
    bench.sample()
    bench.submit()
    bench.until(lambda: isinstance(bench.state(1), Done))
    assert bench.state(1).reason == "no room for a runner"


class TestFullDisk:
    def test_a_submission_is_refused_and_its_id_stays_free(self, bench):
        bench.disk.full = True
        with pytest.raises(JournalError, match="disk full"):
            bench.submit()
        assert bench.loop.journal_error is not None
        bench.disk.full = False
        assert bench.submit() == [1]
        assert bench.loop.journal_error is None

    def test_a_change_is_refused_and_has_no_effect(self, bench):
        bench.sample()
        bench.submit()
        bench.until(lambda: bench.engine.launched)
        bench.disk.full = True
        with pytest.raises(JournalError):
            bench.loop.change(JobChange("cancel", 1, "t")).result(TIMEOUT_S)
        assert bench.engine.stopped == []

    def test_events_of_attempts_wait_in_memory(self, bench):
        bench.sample()
        bench.submit()
        bench.until(lambda: bench.engine.launched)
        bench.disk.full = True
        bench.inbox.put(started(1))
        bench.inbox.put(exited(1, code=4))
        bench.turn()
        assert bench.state(1) == Starting(attempt=1)
        bench.disk.full = False
        bench.until(lambda: isinstance(bench.state(1), Done))
        assert bench.state(1).code == 4
        assert [type(event) for event in bench.disk.replay()][-2:] == [AttemptStarted, AttemptExited]

    def test_an_unwritable_decision_waits_and_is_carried_out_once(self, bench):
        bench.submit(a_spec(declared_bytes=2**30), a_spec(declared_bytes=2**30))
        bench.turn()
        bench.disk.full = True
        bench.sample()
        bench.turn()
        assert bench.engine.launched == []
        with pytest.raises(JournalError):
            bench.submit()
        bench.sample()
        bench.disk.full = False
        bench.until(lambda: bench.engine.launched)
        bench.inbox.put(started(1))
        bench.until(lambda: isinstance(bench.state(1), Running))
        assert bench.engine.launched.count((1, 1, {"SIM": "1"})) == 1


class TestWatch:
    def test_a_wait_ends_with_the_job(self, bench):
        bench.sample()
        bench.submit()
        bench.until(lambda: bench.engine.launched)
        done = bench.loop.wait(WaitRequest(1, "done"))
        begun = bench.loop.wait(WaitRequest(1, "started"))
        bench.inbox.put(started(1))
        assert begun.result(TIMEOUT_S).state == Running(attempt=1)
        assert not done.done()
        bench.inbox.put(exited(1))
        assert isinstance(done.result(TIMEOUT_S).state, Done)

    def test_a_wait_for_the_start_ends_if_the_job_is_cancelled(self, bench):
        bench.submit()
        begun = bench.loop.wait(WaitRequest(1, "started"))
        bench.loop.change(JobChange("cancel", 1, "t")).result(TIMEOUT_S)
        assert isinstance(begun.result(TIMEOUT_S).state, Done)

    def test_a_cancelled_wait_is_forgotten(self, bench):
        bench.submit()
        gone = bench.loop.wait(WaitRequest(1, "done"))
        bench.turn()
        gone.cancel()
        bench.turn()
        assert bench.loop._waiters._waiting == {}
        with contextlib.suppress(CancelledError):
            gone.result(0)

    def test_a_wait_for_an_unknown_job_is_refused(self, bench):
        with pytest.raises(NoSuchJob):
            bench.loop.wait(WaitRequest(5, "done")).result(TIMEOUT_S)


def test_a_failed_query_raises_in_its_caller_only(bench):
    with pytest.raises(ZeroDivisionError):
        bench.loop.query(lambda _: 1 // 0).result(TIMEOUT_S)
    assert bench.submit() == [1]


@pytest.mark.parametrize("wrong_by_s", [-86400.0, 86400.0])
def test_setting_the_wall_clock_makes_no_attempt_overdue(bench, wrong_by_s):
    bench.sample()
    bench.submit(a_spec(declared_bytes=2**30, time_limit_s=60.0))
    bench.until(lambda: bench.engine.launched)
    bench.inbox.put(replace(started(1), at_s=10.0 + wrong_by_s))
    bench.until(lambda: isinstance(bench.state(1), Running))
    bench.sample()
    bench.turn()
    assert bench.engine.stopped == []
    assert bench.loop.query(lambda manager: manager.jobs[1].attempts[0].started_at_s).result(TIMEOUT_S) == 10.0
    bench.inbox.put(replace(exited(1), at_s=11.0 + wrong_by_s))
    bench.until(lambda: isinstance(bench.state(1), Done))
    assert bench.state(1).at_s == 10.0


def test_state_that_cannot_be_restored_ends_the_daemon(bench):
    bench.manager.handle = bench.manager.restore = None
    bench.loop.submit([a_spec()])
    assert bench.failed.wait(TIMEOUT_S)


def test_a_cancellation_is_journaled_with_its_cause(bench):
    bench.submit()
    bench.loop.change(JobChange("cancel", 1, "why")).result(TIMEOUT_S)
    last = list(bench.disk.replay())[-1]
    assert (type(last), last.cause) == (JobCancelled, "why")


class TestUnwritableEvents:
    """An event that has no JSON form affects its own job; everything that came with it is done."""

    def test_an_estimate_fails_its_job_s_estimate_only(self, bench):
        ids = bench.submit(a_spec(), a_spec(hold=True))
        bench.inbox.put(estimated(1, coverage=math.nan))
        bench.turn()
        bench.submit(a_spec(hold=True))
        done = bench.loop.query(lambda manager: manager.jobs[1]).result(TIMEOUT_S)
        assert (done.estimate, done.estimate_error) == (None, "the estimate cannot be journaled")
        assert bench.loop.journal_error is None
        assert ids == [1, 2]

    def test_an_exit_ends_its_attempt_and_delays_no_other(self, bench):
        bench.sample()
        bench.submit(a_spec(declared_bytes=2**30), a_spec(declared_bytes=2**30))
        bench.until(lambda: len(bench.engine.launched) == 1)
        bench.inbox.put(started(1))
        bench.inbox.put(replace(exited(1), peak_observed_bytes={"GPU-0": math.nan}))
        bench.until(lambda: isinstance(bench.state(1), Done))
        assert bench.state(1).outcome == "lost"
        bench.sample()
        bench.until(lambda: len(bench.engine.launched) == 2)

    def test_a_submission_is_refused_alone(self):
        bench = Bench()
        answers = [bench.loop.submit([spec]) for spec in (a_spec(), a_spec(time_limit_s=math.nan), a_spec())]
        bench.start()
        assert answers[0].result(TIMEOUT_S) == [1]
        with pytest.raises(JournalError, match="JobSubmitted of job 2 cannot be written"):
            answers[1].result(TIMEOUT_S)
        assert answers[2].result(TIMEOUT_S) == [3]
        bench.loop.close()

    def test_a_report_in_the_backlog_does_not_block_those_behind_it(self, bench):
        bench.sample()
        bench.submit()
        bench.until(lambda: bench.engine.launched)
        bench.disk.full = True
        bench.inbox.put(estimated(1, coverage=math.nan))
        bench.inbox.put(started(1))
        bench.turn()
        bench.disk.full = False
        bench.until(lambda: isinstance(bench.state(1), Running))


def estimated(job_id, *, coverage):
    estimate = Estimate(
        peak_allocated_bytes=1,
        peak_reserved_bytes=1,
        context_bytes=1,
        margin_bytes=1,
        coverage=coverage,
        estimator="traced",
        version="1",
        gpu="A100",
    )
    return EstimateReady(at_s=10.0, cause="t", job_id=job_id, estimate=estimate, error=None)
