"""One event that cannot be applied costs its own job something, and nobody else."""

from __future__ import annotations

import dataclasses

import pytest

from builders import a_gpu, a_spec, an_estimate
from cotenant.core.errors import CotenantError, JournalError
from cotenant.core.events import AttemptSample, EstimateReady, JobHeld, JobSubmitted, ServerSampled
from cotenant.core.gpu import GpuSample
from cotenant.core.job import Done, Held, Running
from cotenant.daemon.messages import BulkChange, JobChange
from cotenant.daemon.quarantine import MAX_AT_START, Quarantine, culprit_id
from cotenant.scheduling import policies
from cotenant.scheduling.manager import Manager
from cotenant.store.memory import MemoryJournal
from loops import TIMEOUT_S, Bench, exited, started

HUGE = 10**4000
"""No float holds it, so that every ratio and every text of it raises OverflowError."""


@pytest.fixture
def bench():
    bench = Bench().start()
    yield bench
    bench.loop.close()
    assert not bench.failed.is_set()


def poisoned(job_id):
    estimate = dataclasses.replace(an_estimate(1), margin_bytes=HUGE)
    return EstimateReady(at_s=10.0, cause="estimator", job_id=job_id, estimate=estimate)


def test_an_estimate_that_breaks_decisions_is_set_aside_and_the_job_goes_on_without(bench):
    bench.estimates.request = lambda job_id, spec: None
    bench.sample()
    (job_id,) = bench.submit(a_spec())
    bench.inbox.put(poisoned(job_id))
    bench.until(lambda: bench.sample() or bench.engine.launched)
    (found,) = bench.disk.quarantined(job_id)
    assert (found.type, found.job_id) == ("EstimateReady", job_id)
    assert "OverflowError" in found.error
    assert "Traceback" in found.trace
    assert bench.submit(a_spec(declared_bytes=2**30)) == [job_id + 1]


def test_a_job_on_which_each_decision_fails_is_held_and_says_why(bench):
    """As of a journal from before estimates were checked: at its start nothing is decided yet."""
    bench.estimates.request = lambda job_id, spec: None
    (job_id,) = bench.submit(a_spec(hold=True))
    bench.inbox.put(poisoned(job_id))
    bench.turn()
    (other,) = bench.submit(a_spec(declared_bytes=2**30))
    bench.loop.change(JobChange("release", job_id, "t"))
    bench.sample()
    bench.until(lambda: bench.sample() or any(launch[0] == other for launch in bench.engine.launched))
    state = bench.state(job_id)
    assert isinstance(state, Held)
    assert "the scheduler failed on this job: OverflowError" in state.reason
    again = Manager(policies.create("most-memory", {}))
    again.restore(bench.disk.replay())
    assert isinstance(again.jobs[job_id].state, Held), "also after a restart"


@pytest.mark.parametrize("is_full", [False, True], ids=["at once", "after a full disk"])
def test_a_placement_that_no_journal_can_hold_holds_its_job_and_delays_no_other(bench, monkeypatch, is_full):
    """As of an installed policy that promises what has no JSON form."""
    driver = type(bench.manager._driver)
    decide = driver.decide

    def faulty(self, at_s):
        placements = decide(self, at_s)
        return [dataclasses.replace(found, sharing=1j) if found.job_id == 1 else found for found in placements]

    monkeypatch.setattr(driver, "decide", faulty)
    bench.submit(a_spec(declared_bytes=2**30), a_spec(declared_bytes=2**30))
    bench.disk.full = is_full
    bench.sample()
    bench.turn()
    bench.disk.full = False
    bench.until(lambda: bench.sample() or any(launch[0] == 2 for launch in bench.engine.launched))
    state = bench.state(1)
    assert isinstance(state, Held)
    assert "AttemptPlaced of job 1 cannot be written" in state.reason
    assert [launch[:2] for launch in bench.engine.launched] == [(2, 1)]
    assert bench.submit(a_spec(declared_bytes=2**30)) == [3]


def test_measurements_that_break_decisions_are_ignored_from_then_on(bench):
    bench.sample()
    (job_id,) = bench.submit()
    bench.until(lambda: bench.engine.launched)
    bench.inbox.put(started(job_id))
    bench.until(lambda: isinstance(bench.state(job_id), Running))
    gpu = a_gpu()
    for _ in range(2):
        bench.inbox.put_sample(
            ServerSampled(
                at_s=10.0,
                cause="test",
                gpus=(gpu,),
                samples={gpu.uuid: GpuSample(at_s=10.0, used_bytes=2**30, smact=0.0)},
                observed=(AttemptSample(job_id=job_id, attempt=1, gpu_uuid=gpu.uuid, used_bytes="a lot"),),
            )
        )
        bench.turn()
    assert bench.disk.quarantined() == [], "no event is to blame"
    assert isinstance(bench.state(job_id), Running)
    bench.inbox.put(exited(job_id))
    (other,) = bench.submit()
    bench.until(lambda: bench.sample() or any(launch[0] == other for launch in bench.engine.launched))


def test_a_bug_that_no_job_explains_pauses_decisions_and_answers_go_on(bench, monkeypatch):
    (job_id,) = bench.submit(a_spec(declared_bytes=2**30))
    bench.turn()  # the estimate of the job is an event of its own, and would explain the bug
    driver = type(bench.manager._driver)
    monkeypatch.setattr(driver, "decide", lambda self, at_s: 1 // 0)
    bench.sample()
    bench.turn()
    monkeypatch.undo()
    assert bench.state(job_id).since_s == 10.0
    assert bench.disk.quarantined() == []
    bench.loop.change(JobChange("cancel", job_id, "t")).result(TIMEOUT_S)
    assert isinstance(bench.state(job_id), Done)


def test_a_submission_that_cannot_be_applied_is_refused_and_its_id_not_given_again(bench, monkeypatch):
    table = type(bench.manager._table)
    submit = table._submitted

    def fails_on_poison(self, event):
        if event.spec.name == "poison":
            raise ZeroDivisionError("poison")
        return submit(self, event)

    monkeypatch.setattr(table, "_submitted", fails_on_poison)
    answer = bench.loop.submit([a_spec(name="poison")])
    with pytest.raises(CotenantError, match="the scheduler failed on this request: ZeroDivisionError: poison"):
        answer.result(TIMEOUT_S)
    assert bench.submit() == [2]
    assert [event.job_id for event in bench.disk.quarantined()] == [1]


def test_a_start_sets_events_aside_that_cannot_be_applied(monkeypatch):
    journal, manager = MemoryJournal(), Manager(policies.create("most-memory", {}))
    journal.append([JobSubmitted(at_s=1.0, cause="t", job_id=i, spec=a_spec(name=f"{i}")) for i in (1, 2, 3)])
    submit = type(manager._table)._submitted
    monkeypatch.setattr(
        type(manager._table), "_submitted", lambda self, event: submit(self, event) if event.job_id != 2 else 1 // 0
    )
    Quarantine(manager, journal, lambda: 5.0).restore()
    assert list(manager.jobs) == [1, 3]
    (found,) = journal.quarantined()
    assert (found.seq, found.job_id, found.error) == (2, 2, "ZeroDivisionError: integer division or modulo by zero")


def test_a_start_on_which_nothing_can_be_applied_is_refused(monkeypatch):
    """After a downgrade all events would be set aside, one by one, and with them all jobs."""
    journal, manager = MemoryJournal(), Manager(policies.create("most-memory", {}))
    journal.append([JobSubmitted(at_s=1.0, cause="t", job_id=i, spec=a_spec()) for i in range(1, 2 * MAX_AT_START)])
    monkeypatch.setattr(type(manager._table), "_submitted", lambda self, event: 1 // 0)
    with pytest.raises(JournalError, match=f"more than {MAX_AT_START} events"):
        Quarantine(manager, journal, lambda: 5.0).restore()


def test_the_culprit_is_the_job_of_the_innermost_frame():
    def inner(event):
        raise ValueError("x")

    def outer(job_id):
        inner(JobHeld(at_s=0.0, cause="", job_id=job_id + 1))

    def neither():
        raise ValueError("x")

    for call, wanted in ((lambda: outer(6), 7), (neither, None)):
        with pytest.raises(ValueError, match="x") as caught:
            call()
        assert culprit_id(caught.value) == wanted


# Many changes at once.


def test_many_jobs_are_cancelled_in_one_transaction(bench):
    ids = bench.submit(*[a_spec(hold=True) for _ in range(50)])
    bench.loop.change(JobChange("cancel", ids[3], "t")).result(TIMEOUT_S)
    before = len(bench.disk.transactions)
    answer = bench.loop.change_many(BulkChange("cancel", (*reversed(ids), 999), "t")).result(TIMEOUT_S)
    assert [type(problem).__name__ for problem in answer if problem is not None] == ["UsageError", "NoSuchJob"]
    assert len(bench.disk.transactions) == before + 1
    assert all(isinstance(bench.state(job_id), Done) for job_id in ids)
    assert sorted(bench.estimates.cancelled) == ids
