"""Lets a training script be moved to another GPU: it saves its state when it is asked to, and goes on from there.

    from cotenant import checkpoint
    ...
    checkpoint.install()
    for step in range(first_step, steps):
        train(step)
        if checkpoint.should_stop():
            save(step + 1)
            checkpoint.exit_saved()

Submit it with `--checkpointable`. The manager starts the same command again, so the script begins by loading what it
saved, if there is anything. Outside of a job SIGTERM has the same effect. Standard library only.

Any program can do the same without this package: after the signal that `$COTENANT_CHECKPOINT_SIGNAL` names, save the
state and exit with code 85. With any other code but 0 the job is started again, too, but counts as not saved.

A module of its own: scripts import it by this name.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import NoReturn

__all__ = ["EXIT_SAVED", "exit_saved", "install", "should_stop"]

EXIT_SAVED = 85
"""By this exit code a job says that its state is saved; `scheduling/recovery.py` has the rule."""

_is_asked = False


def install(number: int | None = None) -> None:
    """Let a signal set what `should_stop` answers; by default the one that the manager sends to this job.

    Call it in the main thread, before the first step. A library that sets a handler for the same signal must do so
    before.

    Raises:
        ValueError: this is not the main thread.
    """
    name = os.environ.get("COTENANT_CHECKPOINT_SIGNAL", "TERM")
    signal.signal(getattr(signal, f"SIG{name}", signal.SIGTERM) if number is None else number, _ask)


def _ask(_number: int, _frame: FrameType | None) -> None:
    global _is_asked
    _is_asked = True


def should_stop() -> bool:
    """Whether this process was asked to save its state and end. Cheap enough for every step."""
    return _is_asked


def exit_saved() -> NoReturn:
    """End the process; its state is saved, and its job continues in another attempt."""
    raise SystemExit(EXIT_SAVED)
