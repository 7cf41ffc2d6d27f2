"""Attempts that were moved: what becomes of their job, its place in the queue, and what is learned of the cost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job
from cotenant import checkpoint
from cotenant.core.job import Attempt, AttemptExit, Done, Queued
from cotenant.core.placement import Placement
from cotenant.scheduling.checkpoints import EXIT_SAVED, MOVE_STOP, REST_S, is_moved, is_saved, offered_from_s
from cotenant.scheduling.placement.orders import fifo
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.prediction.move_cost import ASSUMED_PART_S, is_wasted, move_cost, typical_move
from cotenant.scheduling.recovery import after_exit


def an_attempt(number=1, code=EXIT_SAVED, detail=MOVE_STOP, *, ran_s=600.0, signal=None, stopping_s=20.0, **changes):
    started_s = 1000.0 * number
    return Attempt(
        number=number,
        placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=2**33),
        placed_at_s=started_s,
        started_at_s=started_s,
        ended_at_s=started_s + ran_s,
        startup_s=10.0,
        exit=AttemptExit(exit_code=code, signal=signal, reason="stopped", detail=detail, stopping_s=stopping_s),
        **changes,
    )


def completed(number, ran_s):
    attempt = an_attempt(number, ran_s=ran_s)
    return replace(attempt, exit=AttemptExit(exit_code=0, signal=None, reason="exited"))


@pytest.mark.parametrize(("code", "signal", "saved"), [(EXIT_SAVED, None, True), (1, None, False), (None, 9, False)])
def test_a_moved_job_is_queued_again_whether_it_saved_or_not(code, signal, saved):
    job = after_exit(a_job(checkpoint_signal="TERM"), an_attempt(code=code, signal=signal))
    assert isinstance(job.state, Queued)
    assert ("with its state saved" in job.state.reason) == saved
    assert (is_moved(job.attempts[0]), is_saved(job.attempts[0])) == (True, saved)


def test_a_job_that_completes_when_it_gets_the_signal_to_save_has_completed():
    job = after_exit(a_job(checkpoint_signal="TERM"), an_attempt(code=0))
    assert isinstance(job.state, Done)
    assert job.state.outcome == "completed"


@pytest.mark.parametrize("code", [EXIT_SAVED, 0])
def test_a_job_that_is_cancelled_while_it_saves_is_cancelled(code):
    job = after_exit(a_job(checkpoint_signal="TERM"), an_attempt(code=code, stop_reason="cancelled"))
    assert isinstance(job.state, Done)
    assert job.state.outcome == "cancelled"


def test_who_is_stopped_for_another_reason_is_not_moved():
    assert not is_moved(an_attempt(detail="idle for 30 minutes"))
    assert not is_moved(replace(an_attempt(), exit=None))


def test_a_moved_job_rests_and_others_do_not():
    moved = after_exit(a_job(checkpoint_signal="TERM"), an_attempt())
    assert offered_from_s(moved) == 1600.0 + REST_S
    assert offered_from_s(after_exit(a_job(checkpoint_signal="TERM", begin_at_s=9000.0), an_attempt())) == 9000.0
    requeued = after_exit(a_job(checkpoint_signal="TERM"), an_attempt(detail="x", stop_reason="requeue"))
    assert offered_from_s(requeued) is None


def test_moves_count_against_no_limit_and_keep_the_jobs_place_in_the_queue():
    job = a_job(at_s=5.0, checkpoint_signal="TERM", max_attempts=1)
    for number in range(1, 6):
        job = after_exit(job, an_attempt(number))
        assert isinstance(job.state, Queued)
    assert fifo(job) == fifo(a_job(at_s=5.0))


def test_a_job_that_was_requeued_once_and_is_moved_later_goes_back_to_where_its_turn_was():
    job = after_exit(a_job(at_s=5.0, checkpoint_signal="TERM"), an_attempt(1, stop_reason="requeue"))
    assert fifo(job)[1] == 1600.0
    job = after_exit(job, an_attempt(2))
    assert fifo(job)[1] == 2000.0, "when the attempt began that was moved"


def test_the_cost_of_a_move_is_learned_per_workload():
    history = WorkloadHistory()
    job = a_job(checkpoint_signal="TERM")
    assert history.move_cost(job).seconds == 2 * ASSUMED_PART_S
    for number, save_s in enumerate((20.0, 40.0, 30.0), start=1):
        job = after_exit(job, an_attempt(number, stopping_s=save_s))
        history.learn(job, {1: job})
    job = after_exit(job, an_attempt(4, code=1))
    history.learn(job, {1: job})
    cost = history.move_cost(a_job(2))
    assert (cost.save_s, cost.startup_s, cost.saves, cost.unsaved) == (30.0, 10.0, 3, 1)
    assert cost.seconds == 40.0
    assert WorkloadHistory.restored(history.state()).move_cost(job) == cost


def test_a_workload_that_was_never_moved_costs_what_the_others_do_in_the_median():
    history = WorkloadHistory()
    for number, save_s in enumerate((5.0, 90.0, 7.0), start=1):
        job = after_exit(
            a_job(number, checkpoint_signal="TERM", command=(f"job-{number}",)), an_attempt(stopping_s=save_s)
        )
        history.learn(job, {number: job})
        if number == 1:
            assert history.move_cost(a_job(9)).seconds == 5.0 + 10.0
    cost = history.move_cost(a_job(9))
    assert (cost.save_s, cost.startup_s) == (None, None)
    assert cost.seconds == 7.0 + 10.0, "not the mean, which one slow workload decides"
    assert WorkloadHistory.restored(history.state()).move_cost(a_job(9)) == cost
    for number in (4, 5, 6):
        job = a_job(number, checkpoint_signal="TERM", command=(f"job-{number}",))
        history.learn(after_exit(job, replace(an_attempt(code=1), startup_s=30.0)), {number: job})
    assert history.move_cost(a_job(9)).seconds == 7.0 + 30.0


def test_a_moved_job_teaches_the_duration_of_the_whole_job():
    history = WorkloadHistory()
    job = after_exit(a_job(checkpoint_signal="TERM"), an_attempt(1, ran_s=600.0, stopping_s=20.0))
    history.learn(job, {1: job})
    job = after_exit(job, completed(2, 300.0))
    history.learn(job, {1: job})
    assert history.duration_s(job) == 300.0 + 600.0 - 20.0 - 10.0


def test_work_that_was_not_saved_is_no_part_of_the_duration():
    history = WorkloadHistory()
    job = after_exit(a_job(checkpoint_signal="TERM"), an_attempt(1, code=1, ran_s=600.0))
    job = after_exit(job, completed(2, 300.0))
    history.learn(job, {1: job})
    assert history.duration_s(job) == 300.0


def test_work_before_an_attempt_that_lost_its_state_is_not_counted():
    """What a script goes on from after that is not known; the shorter duration is assumed."""
    history = WorkloadHistory()
    job = a_job(checkpoint_signal="TERM")
    for number, code in enumerate((EXIT_SAVED, 1, EXIT_SAVED), start=1):
        job = after_exit(job, an_attempt(number, code=code))
    job = after_exit(job, completed(4, 300.0))
    history.learn(job, {1: job})
    assert history.duration_s(job) == 300.0 + 600.0 - 20.0 - 10.0


def test_a_move_to_which_the_job_completed_wasted_nothing():
    assert [is_wasted(an_attempt(code=code)) for code in (1, 0, EXIT_SAVED)] == [True, False, False]


def test_costs_of_an_accelerated_server_are_in_gpu_time():
    assert move_cost([], [], 0, typical_move([], [], pace=60.0)).seconds == 2 * ASSUMED_PART_S / 60.0


def test_the_helper_and_the_rule_have_the_same_exit_code():
    assert checkpoint.EXIT_SAVED == EXIT_SAVED
    with pytest.raises(SystemExit) as ended:
        checkpoint.exit_saved()
    assert ended.value.code == EXIT_SAVED
