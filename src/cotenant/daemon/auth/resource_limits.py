"""Limits on resources of who asks, which their jobs get as well."""

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
    """Soft and hard limits of the process at the other end, -1 for none, as the kernel tells them.

    None where jobs have our own: those of our own user, which are all unless we are root, and of another machine.

    Raises:
        NotPermitted: the process has ended. Nobody waits for its answer, and who could leave so would leave its limits.
    """
    if os.geteuid() != 0 or peer.uid == 0 or not peer.pid or peer.token is not None:
        return None
    text = _proc_limits(peer)
    if text is None:
        raise NotPermitted(
            f"process {peer.pid}, which opened the connection, has ended or is another user's by now",
            hint="whoever connects must wait for the answer: a job gets the limits of that process",
        )
    found = {_NAMES.get(line[1]): (_value(line[2]), _value(line[3])) for line in _LINE.finditer(text)}
    return {name: pair for name, pair in found.items() if name is not None}


def _proc_limits(peer: Peer) -> str | None:
    """What /proc says of the limits of the process; None if there is none, or its number is somebody else's by now."""
    try:
        folder = os.open(f"/proc/{peer.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # Both are of the process that had the number when the folder was opened. The owner of these files is no
            # answer: they are root's where a process may not be traced, as those of sshd.
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
