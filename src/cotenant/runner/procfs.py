"""Identity and descendants of processes, from /proc; the runner's own copy of `osutil.procfs`.

A copy, since the runner imports the standard library only.
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple


class Stat(NamedTuple):
    """Fields of /proc/PID/stat; a zombie has `state` Z. Source: proc_pid_stat(5)."""

    pid: int
    state: str
    ppid: int
    session: int
    start_ticks: int


@functools.cache
def boot_id() -> str:
    """Names this boot of the machine, so that a pid of an earlier boot is never taken for a living process."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def stat(pid: int) -> Stat | None:
    """The process, or None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    # Field 2 is the program's name in parentheses, and may hold spaces and parentheses: split after the last one.
    fields = text.rpartition(")")[2].split()
    return Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def descendants(root: int) -> list[int]:
    """Living children, grandchildren and so on of `root`, zombies left out."""
    children: dict[int, list[Stat]] = {}
    for name in os.listdir("/proc"):
        found = stat(int(name)) if name.isdigit() else None
        if found is not None:
            children.setdefault(found.ppid, []).append(found)
    family, front = [], [root]
    while front:
        for child in children.get(front.pop(), ()):
            front.append(child.pid)
            if child.state != "Z":
                family.append(child.pid)
    return family
