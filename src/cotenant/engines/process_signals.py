"""Signals to the processes of an attempt: pauses by SIGSTOP, continues, and what a user sends.

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
from cotenant.core.ports import SignalTarget
from cotenant.engines.runner_spec import RUNNER_DIR
from cotenant.jobfiles.python_commands import SHELLS
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


def send(runner: ProcessId, number: int, target: SignalTarget, uid: int) -> int:
    """Signal the processes of `runner`'s attempt that `target` names and `uid` could signal; returns how many.

    A process with another real uid, such as what sudo runs, is not the job's user's to signal (kill(2)).
    """
    family = {pid for pid in _descendants(runner) if not _is_step_counter(pid)}
    stats = [stat for pid in family if (stat := procfs.read_stat(pid)) is not None and stat.parent == runner.pid]
    if not stats:
        return 0
    command = min(stats, key=lambda stat: (stat.start_ticks, stat.pid)).pid  # the runner's later children are orphans
    if target == "command":
        family = {command}
    elif target == "programs" and _program(command) in SHELLS and len(family) > 1:
        family.discard(command)
    return _signal({pid for pid in family if procfs.real_uid(pid) == uid}, number)


def _is_step_counter(pid: int) -> bool:
    """Whether it is the process of `runner/progress.py`, which counts the steps of a job."""
    return str(RUNNER_DIR.resolve() / "progress.py").encode() in _read(pid, "cmdline").split(b"\0")


def _program(pid: int) -> str:
    return _read(pid, "comm").decode(errors="replace").strip()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"{procfs.PROC}/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _descendants(runner: ProcessId) -> set[int]:
    return set(procfs.descendants(runner.pid)) if procfs.is_alive(runner) else set()


def _signal(pids: set[int], number: int) -> int:
    """Signal them; returns how many there were."""
    sent = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            sent += 1
    return sent
