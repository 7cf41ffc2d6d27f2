"""Ends what is left of an attempt after its runner has gone."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from cotenant.core.job import AttemptExit, ProcessId
from cotenant.osutil import procfs
from cotenant.osutil.env_tags import has_env_tag
from cotenant.osutil.procfs import ProcessStat

EXEC_TIMEOUT_S = 1.0
"""A process is inside execve(2) for microseconds, longer only where it waits for a processor."""
POLL_S = 0.02


def kill_leftovers(
    known: Collection[ProcessId], env_tag: Mapping[str, str], *, uid: int | None = None, timeout_s: float
) -> int:
    """SIGKILL all processes of an attempt; returns how many were still alive after `timeout_s`.

    These are the `known` processes, all that have `env_tag` in their environment, and all that share a session with one
    of them. A session id alone proves nothing: the kernel gives it to strangers once its last member has ended.

    `uid`: of the attempt's user, None for ours. Only the user's processes count as tagged, and die for sharing a
    session with a tagged one: `su` and `sudo` leave users in the sessions of others, where they may tag what they like.
    """
    uid = os.getuid() if uid is None else uid
    began_s = time.monotonic()
    # What was found stays found, also as a zombie, which holds its session: a child of a process that has been killed
    # since is in that session, and nothing else shows that it belongs to the attempt.
    of_known: set[tuple[int, int]] = set()
    of_tagged: set[tuple[int, int]] = set()
    while True:
        stats = [stat for stat in procfs.all_stats() if stat.pid != os.getpid()]
        alive = {stat.pid for stat in stats if stat.state != "Z"}
        tagged = {pid: has_env_tag(pid, env_tag) for pid in alive}
        recorded = {stat.pid for stat in stats if _is_one_of(stat, known) or _identity(stat) in of_known}
        recorded |= _session_members(stats, recorded)
        claimed = {pid for pid, has_tag in tagged.items() if has_tag and procfs.real_uid(pid) == uid}
        claimed |= {stat.pid for stat in stats if _identity(stat) in of_tagged}
        claimed |= {pid for pid in _session_members(stats, claimed) - recorded if procfs.real_uid(pid) == uid}
        of_known |= {_identity(stat) for stat in stats if stat.pid in recorded}
        of_tagged |= {_identity(stat) for stat in stats if stat.pid in claimed}
        doomed = (recorded | claimed) & alive
        elapsed_s = time.monotonic() - began_s
        is_unclear = None in tagged.values() and elapsed_s < EXEC_TIMEOUT_S
        if elapsed_s > timeout_s or not (doomed or is_unclear):
            return len(doomed)
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def exit_without_runner(stop_reason: str, *, started: bool, left: int) -> AttemptExit:
    """The end of an attempt whose runner left no result; `left` processes could not be killed."""
    remains = f"; {left} processes could not be killed" if left else ""
    if stop_reason:
        number = signal.SIGKILL if started else None
        return AttemptExit(exit_code=None, signal=number, reason="stopped", detail=stop_reason + remains)
    if not started:
        return AttemptExit(exit_code=None, signal=None, reason="not-started", detail="its runner ended too early")
    detail = "its runner was killed, or the machine restarted"
    return AttemptExit(exit_code=None, signal=None, reason="lost", detail=detail + remains)


def as_never_ran(end: AttemptExit, error: OSError) -> AttemptExit:
    """`end`, which could not be recorded for `error`. An attempt that did not start on a full disk never ran."""
    if end.reason != "not-started" or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return end
    return replace(end, reason="never-ran", detail=f"{end.detail}: {error.strerror}")


def _identity(stat: ProcessStat) -> tuple[int, int]:
    """Of a process since the machine started: a process id is given again."""
    return stat.pid, stat.start_ticks


def _session_members(stats: Collection[ProcessStat], pids: Collection[int]) -> set[int]:
    """Everything in the sessions of `pids`."""
    sessions = {stat.session for stat in stats if stat.pid in pids}
    return {stat.pid for stat in stats if stat.session in sessions}


def _is_one_of(stat: ProcessStat, known: Collection[ProcessId]) -> bool:
    boot_id = procfs.boot_id()
    return any(
        (process.pid, process.start_ticks, process.boot_id) == (stat.pid, stat.start_ticks, boot_id)
        for process in known
    )
