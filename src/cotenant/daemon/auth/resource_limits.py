"""Resource limits of the submitting process, which its jobs inherit."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from cotenant.core.errors import NotPermitted
from cotenant.daemon.auth.unix_socket import Peer

_NAMES = {
    "address space": "as",
    "core file size": "core",
    "cpu time": "cpu",
    "data size": "data",
    "file size": "fsize",
    "locked memory": "memlock",
    "msgqueue size": "msgqueue",
    "nice priority": "nice",
    "open files": "nofile",
    "pending signals": "sigpending",
    "processes": "nproc",
    "realtime priority": "rtprio",
    "realtime timeout": "rttime",
    "resident set": "rss",
    "stack size": "stack",
}
"""Names in getrlimit(2) by those in /proc/PID/limits. Source: fs/proc/base.c, `lnames`."""

_LINE = re.compile(r"Max ([a-z ]+?) {2,}(\d+|unlimited) +(\d+|unlimited)\b")


def limits_of(peer: Peer) -> Mapping[str, tuple[int, int]] | None:
    """Soft and hard limits of the peer process by name, -1 for unlimited; None if jobs get the daemon's own limits.

    That is so for jobs of the daemon's own user (all jobs, unless the daemon is root's), and for jobs from the network.

    Raises:
        NotPermitted: the process has ended: its limits are unknown, and a job must not escape them.
    """
    if os.geteuid() != 0 or peer.uid == 0 or not peer.pid or peer.token is not None:
        return None
    text = _proc_limits(peer)
    if text is None:
        raise NotPermitted(
            f"process {peer.pid}, which opened the connection, has ended",
            hint="keep the client running until the answer arrives: its jobs get its resource limits",
        )
    found = {_NAMES.get(line[1]): (_value(line[2]), _value(line[3])) for line in _LINE.finditer(text)}
    return {name: pair for name, pair in found.items() if name is not None}


def _proc_limits(peer: Peer) -> str | None:
    """The text of /proc/PID/limits; None if the process ended, or its pid belongs to another user by now."""
    try:
        folder = os.open(f"/proc/{peer.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Opening the folder pins the process: both files are of the process that had the pid then. The owner of
            # these files is no answer: proc(5) gives them to root if the process is not dumpable, as sshd is.
            effective = re.search(r"^Uid:\s+\d+\s+(\d+)", _read(folder, "status"), re.MULTILINE)
            text = _read(folder, "limits")
        finally:
            os.close(folder)
    except OSError:
        return None
    return text if effective is not None and int(effective[1]) == peer.uid else None


def _read(folder: int, name: str) -> str:
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), errors="replace") as file:
        return file.read()


def _value(word: str) -> int:
    return -1 if word == "unlimited" else int(word)
