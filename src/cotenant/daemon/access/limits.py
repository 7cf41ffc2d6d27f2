"""Limits on resources of who asks, which their jobs get as well."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from cotenant.daemon.access.sockets import Peer

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

    None where they are our own, for jobs of our own user; where they cannot be told, as of another machine; or where
    the process is gone already.
    """
    if peer.uid == os.geteuid() or not peer.pid or peer.token is not None:
        return None
    try:
        with Path(f"/proc/{peer.pid}/limits").open(encoding="ascii") as file:
            # By now the number may be that of somebody else's process, with other limits.
            if os.fstat(file.fileno()).st_uid != peer.uid:
                return None
            text = file.read()
    except OSError:
        return None
    found = {_NAMES.get(line[1]): (_value(line[2]), _value(line[3])) for line in _LINE.finditer(text)}
    return {name: pair for name, pair in found.items() if name is not None}


def _value(word: str) -> int:
    return -1 if word == "unlimited" else int(word)
