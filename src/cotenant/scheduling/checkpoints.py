"""Attempts that are stopped so that their job goes on later or elsewhere, with its state saved if it can.

A job that can save its state has a `JobSpec.checkpoint_signal`. It says that its state is saved by the exit code 85,
which HTCondor uses for the same. With any other code its job is queued again, too, but the work is lost; with 0 it had
just completed. `recovery` has the other ends of attempts.

A module of its own: `recovery` is full, and most that need this need no more.
"""

from __future__ import annotations

from cotenant.core.job import Attempt, Job

REQUEUE = "requeue"
"""`Attempt.stop_reason` of an attempt whose job goes back to the queue."""

TIME_SLICE_STOP = "time slice over"
"""How the exit of an attempt begins that was stopped because its time slice was over."""

MOVE_STOP = "moved"
"""How the exit of an attempt begins that was stopped so that its job continues on other GPUs."""

GOES_ON = (MOVE_STOP, REQUEUE, TIME_SLICE_STOP)
"""How the reasons of stops begin after which a job is queued again."""

EXIT_SAVED = 85
"""Exit code by which a job says that it has saved its state. Source: HTCondor's manual, `checkpoint_exit_code`."""


REST_S = 2.0
"""A job that was moved is offered to the policy after this: whatever it made room for comes first."""


def offered_from_s(job: Job) -> float | None:
    """The earliest time at which a queued job may start, by its request or because it was just moved; None: any."""
    begin_at_s = job.spec.begin_at_s
    last = job.last_attempt
    if last is None or last.ended_at_s is None or not is_moved(last):
        return begin_at_s
    return max(begin_at_s or 0.0, last.ended_at_s + REST_S)


def is_moved(attempt: Attempt) -> bool:
    """Whether it was stopped so that its job continues on other GPUs."""
    end = attempt.exit
    return end is not None and end.reason == "stopped" and end.detail.startswith(MOVE_STOP)


def is_saved(attempt: Attempt) -> bool:
    """Whether it was stopped and said that its state is saved."""
    end = attempt.exit
    return end is not None and end.reason == "stopped" and end.exit_code == EXIT_SAVED


def completed_while_saving(job: Job, attempt: Attempt) -> bool:
    """Whether a job that got the signal to save its state came to its end instead."""
    end = attempt.exit
    got_signal = job.spec.checkpoint_signal is not None and attempt.stop_reason in (None, REQUEUE)
    return got_signal and end is not None and end.reason == "stopped" and end.exit_code == 0
