"""Processes by a variable of the environment with which they were started, which all that they start inherits.

A module of its own: the engines, the tracer and the Slurm room find processes by it, and share no other room.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping

from cotenant.osutil import procfs

_MAX_SWEEPS = 20


def has_env_tag(pid: int, env_tag: Mapping[str, str]) -> bool | None:
    """Whether the process was started with all variables of `env_tag`; False where we may not look.

    None where it is not known yet: inside execve(2) the old environment is gone and the new one not there.
    """
    try:
        environment = _environment(pid)
        if not environment:
            stat = procfs.read_stat(pid)
            if stat is not None and stat.is_execing:
                return None
            environment = _environment(pid)  # the new program may have started between the two reads
    except OSError:
        return False
    entries = environment.split(b"\0")
    return all(f"{key}={value}".encode() in entries for key, value in env_tag.items())


def kill_tagged(env_tag: Mapping[str, str]) -> None:
    """SIGKILL all processes of this user that were started with all variables of `env_tag`, until none is found.

    Not waited for: they are nobody's children, or their parents'.
    """
    for _ in range(_MAX_SWEEPS):
        stats = [stat for stat in procfs.all_stats() if stat.state != "Z" and stat.pid != os.getpid()]
        own = [stat.pid for stat in stats if procfs.real_uid(stat.pid) == os.getuid()]
        doomed = [pid for pid in own if has_env_tag(pid, env_tag)]
        if not doomed:
            return
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _environment(pid: int) -> bytes:
    with open(f"{procfs.PROC}/{pid}/environ", "rb", buffering=0) as file:
        return file.readall()
