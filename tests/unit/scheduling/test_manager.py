"""From submit to done: what follows from which event, and what must not happen twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_spec, an_estimate
from cotenant.core.errors import NoSuchJob
from cotenant.core.events import (
    AttemptPlaced,
    EstimateReady,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    Launch,
    RequestEstimate,
    Stop,
)
from cotenant.core.job import AttemptExit, Done, Queued, Running, Starting
from cotenant.core.placement import Deferral, Placement
from cotenant.core.units import GiB
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.policies import create
from managers import OOM, Life, launches


def test_a_job_with_declared_memory_starts_at_once_and_is_still_estimated():
    commands = Life().submit()
    assert [type(command) for command in commands] == [RequestEstimate, Launch]
    placed = commands[1].placed
    assert placed == AttemptPlaced(
        at_s=0.0,
        cause="policy first-fit",
        job_id=1,
        attempt=1,
        placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=8 * GiB),
    )


def test_a_launch_moves_the_job_to_starting_before_the_command_returns():
    life = Life()
    life.submit()
    assert life.job().state == Starting(attempt=1)
    assert life.sample() == []


def test_a_job_without_a_declared_need_waits_for_its_estimate():
    life = Life()
    assert [type(command) for command in life.submit(gib=None)] == [RequestEstimate]
    assert life.manager.explain(1) == Deferral(job_id=1, reason="waits for its memory estimate")
    assert launches(life.sample()) == []
    assert launches(life.estimate()) == [1]


def test_a_job_that_cannot_be_estimated_runs_alone():
    life = Life()
    life.submit(gib=None)
    (launch,) = life.estimate(gib=None)
    assert launch.placed.placement.sharing == "exclusive"
    assert life.job().estimate_error == "no such script"


def test_with_estimation_off_no_estimate_is_requested():
    life = Life(estimate=False)
    (launch,) = life.submit(gib=None)
    assert launch.placed.placement.sharing == "exclusive"


def test_a_later_failure_to_estimate_does_not_undo_an_estimate():
    life = Life()
    life.submit(gib=None)
    life.estimate()
    life.estimate(gib=None)
    assert life.job().estimate == an_estimate(8)


def test_from_submit_to_completed():
    life = Life()
    life.submit()
    life.at_s = 3.0
    life.start()
    assert life.job().state == Running(attempt=1)
    assert life.job().last_attempt.started_at_s == 3.0
    life.at_s = 9.0
    life.exit(**{"GPU-0": 5})
    assert life.job().state == Done(outcome="completed", at_s=9.0, code=0)
    assert life.job().last_attempt.peak_observed_bytes == {"GPU-0": 5}


# What must not happen twice, or at all.


def test_a_second_submission_of_the_same_job_changes_nothing():
    life = Life()
    life.submit()
    before = life.job()
    assert life.submit(gib=20) == []
    assert life.job() == before


def test_events_of_an_old_attempt_do_not_touch_the_new_one():
    life = Life()
    life.submit()
    life.start()
    assert launches(life.exit(end=OOM)) == [1]
    assert life.job().state == Starting(attempt=2)
    before = life.job()
    life.exit(attempt=1)
    life.start(attempt=1)
    assert life.job() == before
    life.start(attempt=2)
    assert life.job().state == Running(attempt=2)
    life.exit(attempt=1)
    assert life.job().state == Running(attempt=2)


def test_an_exit_that_arrives_before_the_start_completes_the_job():
    life = Life()
    life.submit()
    life.exit()
    life.start()
    assert life.job().is_done
    assert life.job().last_attempt.started_at_s is None


def test_a_started_attempt_starts_once():
    life = Life()
    life.submit()
    life.start()
    life.at_s = 50.0
    life.start()
    assert life.job().last_attempt.started_at_s == 0.0


@pytest.mark.parametrize(("attempt", "count"), [(0, 1), (1, 1), (3, 1), (2, 2)])
def test_only_the_next_attempt_can_be_placed(attempt, count):
    life = Life()
    life.submit()
    life.sample(used=[39])
    life.exit(end=OOM)
    assert life.state() is Queued
    place = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
    life.send(AttemptPlaced, attempt=attempt, placement=place)
    assert len(life.job().attempts) == count


def test_unknown_jobs_are_ignored():
    life = Life()
    for commands in (
        life.estimate(5),
        life.start(5),
        life.exit(5),
        life.send(JobCancelled, 5),
        life.send(JobHeld, 5),
        life.send(JobReleased, 5),
    ):
        assert commands == []
    assert life.manager.jobs == {}
    with pytest.raises(NoSuchJob, match="no job 5"):
        life.manager.explain(5)


# The policy is not trusted.


class Faulty:
    name = "faulty"

    def __init__(self, *placements):
        self.placements = placements

    def decide(self, queue, server):
        return [replace(placement, job_id=queue[0].id) for placement in self.placements]


def test_a_policy_that_promises_too_much_places_nothing():
    life = Life()
    wrong = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=41 * GiB)
    life.manager = Manager(Faulty(wrong))
    life.sample()
    assert launches(life.submit()) == []
    assert (
        life.manager.explain(1).reason
        == "placement by policy `faulty` refused: 41.0 GiB promised on GPU-0, 40.0 GiB available"
    )


def test_a_policy_that_places_a_job_twice_starts_it_once():
    life = Life()
    right = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
    life.manager = Manager(Faulty(right, right))
    life.sample()
    assert launches(life.submit()) == [1]
    assert life.manager.explain(1).reason.startswith("starts on GPU 0")


# A long queue, restart, explanations.


def test_in_a_long_queue_a_new_job_is_considered_at_the_next_sample():
    life = Life(eager_queue=1)
    life.submit(1, 30)
    life.submit(2, 30)
    life.submit(3, 30)
    assert launches(life.submit(4, 1)) == []
    assert life.manager.explain(4).reason == "position 3 of 3 in the queue, considered at the next GPU sample"
    assert launches(life.sample()) == [4]


def test_restore_repeats_pending_estimates_and_stops_and_places_nothing():
    life = Life()
    events = [
        JobSubmitted(at_s=1.0, cause="test", job_id=1, spec=a_spec(declared_bytes=GiB)),
        AttemptPlaced(
            at_s=2.0,
            cause="test",
            job_id=1,
            attempt=1,
            placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB),
        ),
        JobCancelled(at_s=3.0, cause="test", job_id=1),
        EstimateReady(at_s=3.0, cause="test", job_id=1, estimate=None, error="no"),
        JobSubmitted(at_s=4.0, cause="test", job_id=2, spec=a_spec()),
        JobSubmitted(at_s=5.0, cause="test", job_id=3, spec=a_spec()),
        JobCancelled(at_s=5.0, cause="test", job_id=3),
    ]
    commands = life.manager.restore(events)
    assert [(type(command), command.job_id, command.at_s) for command in commands] == [
        (Stop, 1, 5.0),
        (RequestEstimate, 2, 5.0),
    ]
    assert life.job(1).state == Starting(attempt=1)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ("first-fit", "GPU 0: needs 30.0 GiB, 10.0 GiB available"),
        ("exclusive", "GPU 0: job 1 has it exclusively"),
    ],
)
def test_explain_gives_the_newest_decision_of_the_policy(policy, reason):
    life = Life()
    life.manager = Manager(create(policy))
    life.sample()
    life.submit(1, 30)
    life.submit(2, 30)
    assert life.manager.explain(2).reason == reason
    assert len(life.manager.explain(2).rejections) == 1


def test_explain_names_the_gpus_and_the_outcome():
    life = Life(gpus=2)
    life.submit(1, 8, gpus=2)
    assert life.manager.explain(1).reason == "starts on GPUs 0, 1 (time-sliced), 8.0 GiB promised"
    life.start()
    life.send(JobCancelled)
    assert life.manager.explain(1).reason == (
        "runs on GPUs 0, 1 (time-sliced), 8.0 GiB promised, being stopped (cancelled)"
    )
    life.exit()
    assert life.manager.explain(1).reason == "cancelled: on request"
    life.submit(2)
    life.exit(2, end=AttemptExit(exit_code=3, signal=None, reason="exited"))
    assert life.manager.explain(2).reason == "failed: exit code 3"


# A script that cannot start.


def fatal(life, **changes):
    """A job whose estimate found that its script cannot start."""
    life.send(JobSubmitted, job_id=1, spec=a_spec(**changes))
    life.send(EstimateReady, job_id=1, estimate=None, error="no module named x", is_fatal=True)
    return life.job(1)


def test_a_script_that_cannot_start_fails_without_a_gpu():
    job = fatal(Life())
    assert job.state == Done(outcome="failed", at_s=job.state.at_s, code=1, reason="not started: no module named x")
    assert (job.attempts, job.estimate_error) == ((), "no module named x")


def test_a_script_that_cannot_start_runs_anyway_on_request():
    assert isinstance(fatal(Life(), run_anyway=True).state, Starting)


def test_a_late_answer_does_not_end_a_job_that_runs():
    life = Life()
    life.submit(1, 8)
    life.start()
    life.send(EstimateReady, job_id=1, estimate=None, error="no", is_fatal=True)
    assert isinstance(life.job(1).state, Running)
