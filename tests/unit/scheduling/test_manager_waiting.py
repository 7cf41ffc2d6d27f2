"""Who has to wait or end: cancel, hold, release, time limits, dependencies."""

from __future__ import annotations

import pytest

from builders import a_gpu
from cotenant.core.events import JobCancelled, JobHeld, JobReleased, Stop
from cotenant.core.job import AttemptExit, Done, Held, Queued, Starting
from cotenant.core.units import GiB
from managers import OOM, Life, launches

# Cancel, hold, release, time limits, dependencies.


def test_cancel_removes_a_pending_job_and_stops_a_running_one():
    life = Life()
    life.submit(1, 30)
    life.submit(2, 30)
    life.send(JobCancelled, 2)
    assert life.job(2).state == Done(outcome="cancelled", at_s=0.0, reason="on request")
    assert life.send(JobCancelled, 1) == [Stop(at_s=0.0, cause="cancelled", job_id=1, attempt=1, grace_s=10.0)]
    assert life.state(1) is Starting
    life.start(1)
    assert life.job(1).last_attempt.stop_reason == "cancelled"
    life.exit(1, end=AttemptExit(exit_code=None, signal=15, reason="stopped"))
    assert life.job(1).state.outcome == "cancelled"
    assert life.send(JobCancelled, 1) == []


def test_cancelling_the_head_of_a_strict_queue_lets_the_next_start():
    life = Life(options={"backfill": False})
    life.submit(1, 30)
    life.submit(2, 30)
    life.submit(3, 4)
    assert life.state(3) is Queued
    assert launches(life.send(JobCancelled, 2)) == [3]


def test_a_held_job_waits_until_it_is_released():
    life = Life()
    life.submit(1, 30)
    life.submit(2, 30)
    life.send(JobHeld, 2)
    life.send(JobHeld, 1)
    assert life.state(1) is Starting
    assert life.manager.explain(2).reason == "held: test"
    assert launches(life.exit(1)) == []
    life.at_s = 5.0
    assert launches(life.send(JobReleased, 2)) == [2]
    life.send(JobReleased, 2)
    assert life.state(2) is Starting


def test_a_job_larger_than_any_gpu_is_held_until_there_is_one():
    life = Life()
    life.submit(1, 60)
    assert life.job().state == Held(since_s=0.0, reason="needs 60.0 GiB on each GPU, the largest has 40.0 GiB")
    life.at_s = 1.0
    before = life.job()
    life.send(JobReleased)
    assert life.job() == before
    life.gpus = (a_gpu(0, 80),)
    assert launches(life.sample()) == [1]


def test_a_job_held_by_its_user_stays_held_when_a_gpu_large_enough_appears():
    life = Life()
    life.submit(1, 60)
    life.send(JobHeld)
    life.gpus = (a_gpu(0, 80),)
    assert launches(life.sample()) == []
    assert launches(life.send(JobReleased)) == [1]


def test_waiting_time_of_an_unsatisfiable_job_begins_when_its_dependencies_are_met():
    life = Life()
    life.submit(1)
    life.submit(2, 60, after=(1,))
    assert life.state(2) is Held
    life.at_s = 4.0
    life.exit(1)
    life.gpus = (a_gpu(0, 80),)
    life.sample(used=[75], at_s=9.0)
    assert life.job(2).state == Queued(since_s=4.0)


def test_a_job_slightly_larger_than_any_gpu_runs_alone():
    life = Life()
    (_, launch) = life.submit(1, 44)
    assert (launch.placed.placement.sharing, launch.placed.placement.promised_bytes) == ("exclusive", 40 * GiB)


def test_a_time_limit_stops_an_attempt_and_the_stop_is_repeated():
    life = Life()
    life.submit(time_limit_s=60.0)
    life.at_s = 100.0
    life.start()
    assert life.tick(159.9) == []
    assert life.tick(160.0) == [Stop(at_s=160.0, cause="timeout", job_id=1, attempt=1, grace_s=10.0)]
    assert life.tick(161.0) == []
    assert [type(command) for command in life.tick(220.0)] == [Stop]
    life.exit(end=AttemptExit(exit_code=None, signal=9, reason="timeout"))
    assert life.job().state.outcome == "timeout"
    assert life.tick(300.0) == []


def test_the_time_limit_of_a_retry_starts_again():
    life = Life()
    life.submit(time_limit_s=30.0)
    life.start()
    assert [type(command) for command in life.tick(30.0)] == [Stop]
    life.sample()
    assert launches(life.exit(end=OOM)) == [1]
    life.start(attempt=2)
    assert [type(command) for command in life.tick(59.0)] == []
    assert [type(command) for command in life.tick(60.0)] == [Stop]


def test_a_job_waits_for_its_dependencies():
    life = Life()
    life.submit(1)
    life.submit(2)
    assert launches(life.submit(3, after=(1, 2))) == []
    assert life.manager.explain(3).reason == "waits for jobs 1, 2 to complete"
    life.exit(1)
    assert life.manager.explain(3).reason == "waits for job 2 to complete"
    life.at_s = 4.0
    (launch,) = life.exit(2)
    assert launch.placed.job_id == 3


def test_waiting_time_begins_when_dependencies_are_met():
    life = Life()
    life.submit(1)
    life.submit(2, 39, after=(1,))
    life.submit(3, 30)
    life.at_s = 4.0
    life.exit(1)
    assert life.job(2).state == Queued(since_s=4.0)


def test_a_failed_dependency_cancels_all_dependents():
    life = Life()
    life.submit(1)
    life.submit(2, after=(1,))
    life.submit(3, after=(2,))
    life.send(JobHeld, 3)
    life.exit(1, end=AttemptExit(exit_code=1, signal=None, reason="exited"))
    assert life.job(2).state == Done(outcome="cancelled", at_s=0.0, reason="dependency 1 failed")
    assert life.job(3).state == Done(outcome="cancelled", at_s=0.0, reason="dependency 2 cancelled")
    life.submit(4, after=(1,))
    assert life.job(4).state.reason == "dependency 1 failed"


@pytest.mark.parametrize("after", [(9,), (1,)])
def test_a_missing_dependency_cancels_the_job(after):
    life = Life()
    assert life.submit(1, after=after) == []
    assert life.job().state == Done(outcome="cancelled", at_s=0.0, reason=f"dependency {after[0]} unknown")


def test_a_dependency_that_already_completed_is_met():
    life = Life()
    life.submit(1)
    life.exit(1)
    assert launches(life.submit(2, after=(1,))) == [2]
