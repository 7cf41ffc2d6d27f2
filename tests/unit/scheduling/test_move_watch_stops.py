"""The stops that begin moves on a live server: when they come, and when none does."""

from __future__ import annotations

import pytest

from cotenant.core.events import JobCancelled, Stop
from cotenant.core.job import AttemptExit
from cotenant.scheduling.checkpoints import EXIT_SAVED, MOVE_STOP
from managers import Life

SAVED = AttemptExit(exit_code=EXIT_SAVED, signal=None, reason="stopped", detail=MOVE_STOP)


def a_server(**config):
    """One of two GPUs has a job that can be moved."""
    life = Life(gpus=2, policy="marginal-gain", **config)
    life.submit(1, exclusive=True, checkpoint_signal="TERM")
    life.start(1)
    return life


def moved_at(life, at_s):
    """The jobs that get a stop for a move when this sample comes."""
    commands = life.sample(at_s=at_s)
    return [command.job_id for command in commands if isinstance(command, Stop) and command.cause.startswith(MOVE_STOP)]


def test_a_job_is_stopped_for_a_gang_once_it_has_run_for_long_enough():
    life = a_server()
    life.submit(2, gpus=2, exclusive=True)
    assert moved_at(life, 299.0) == []
    assert moved_at(life, 361.0) == [1]
    assert moved_at(life, 500.0) == [], "it is on its way"
    life.exit(1, end=SAVED)
    assert life.job(2).attempts, "the gang has both GPUs"


def test_a_job_that_is_being_cancelled_is_not_moved():
    life = a_server()
    life.submit(2, gpus=2, exclusive=True)
    life.send(JobCancelled, 1)
    assert moved_at(life, 361.0) == []


def test_one_job_is_moved_at_a_time():
    life = Life(gpus=3, policy="marginal-gain")
    for job_id in (1, 2):
        life.submit(job_id, exclusive=True, checkpoint_signal="TERM")
        life.start(job_id)
    life.submit(3, gpus=2, exclusive=True)
    assert len(moved_at(life, 361.0)) == 1
    life.submit(4, gpus=2, exclusive=True)
    assert moved_at(life, 500.0) == []
    assert moved_at(life, 520.0) == [], "the change would bring a look, but a move is on its way"


def test_a_clock_that_was_set_back_brings_a_look_at_once():
    life = a_server()
    assert moved_at(life, 1000.0) == []
    life.submit(2, gpus=2, exclusive=True)
    assert moved_at(life, 500.0) == [1]


@pytest.mark.parametrize("is_suspended", [True, False])
def test_a_job_that_is_paused_stays_where_it_is(is_suspended):
    life = a_server(stale_after_s=100.0)
    life.submit(2, gpus=2, exclusive=True)
    life.sample(at_s=299.0)
    stops = life.manager._moves.commands(361.0, lambda _job: is_suspended)
    assert [stop.job_id for stop in stops] == ([] if is_suspended else [1])
