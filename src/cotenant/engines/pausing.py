"""Pauses the processes of an attempt by SIGSTOP, and lets them continue.

A paused process keeps its memory, also on GPUs; kernels that it has launched run to their end. Its user may continue
it: SIGCONT needs no other right than having started it (kill(2)). A file in the attempt's folder says that it is
paused, so that a later daemon can let it continue.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from cotenant.core.job import ProcessId
from cotenant.osutil import procfs

MARK = "paused"
MAX_ROUNDS = 10


def pause(folder: Path, runner: ProcessId) -> None:
    """Stop all descendants of `runner`, which itself goes on: it enforces time limits and stops.

    Again until no new one appears: one that is not stopped yet may fork.
    """
    with contextlib.suppress(OSError):  # on a full disk, a restart of the daemon leaves it paused until it is stopped
        (folder / MARK).touch(mode=0o600)
    stopped: set[int] = set()
    for _ in range(MAX_ROUNDS):
        new = _descendants(runner) - stopped
        if not new:
            return
        _signal(new, signal.SIGSTOP)
        stopped |= new


def resume(folder: Path, runner: ProcessId) -> None:
    """Let the descendants of `runner` continue if they are paused."""
    if (folder / MARK).exists():
        _signal(_descendants(runner), signal.SIGCONT)
        (folder / MARK).unlink(missing_ok=True)


def _descendants(runner: ProcessId) -> set[int]:
    return set(procfs.descendants(runner.pid)) if procfs.is_alive(runner) else set()


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
