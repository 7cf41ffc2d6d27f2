"""Attempts that are stopped so that their job continues later or elsewhere, from a saved state if it has one.

A job that can save its state has a `JobSpec.checkpoint_signal`, and reports a saved state by exit code 85, as in
HTCondor. After any other code its job is queued again, too, but the work is lost; after 0 it had just completed.

A module of its own: `recovery` decides what follows an exit; the orders, the simulator and the web page only need to
know which stops these are.
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
"""Exit code by which a job reports a saved state. Source: HTCondor's manual, `checkpoint_exit_code`."""

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
    """Whether it was stopped and reported that its state is saved."""
    end = attempt.exit
    return end is not None and end.reason == "stopped" and end.exit_code == EXIT_SAVED


def completed_while_saving(job: Job, attempt: Attempt) -> bool:
    """Whether a job that got the signal to save its state came to its end instead."""
    end = attempt.exit
    got_signal = job.spec.checkpoint_signal is not None and attempt.stop_reason in (None, REQUEUE)
    return got_signal and end is not None and end.reason == "stopped" and end.exit_code == 0
