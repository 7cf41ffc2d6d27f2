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


SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "mksh"))


def programs(pid: int, number: int) -> list[int]:
    """`pid`; or in place of a shell that has no trap for signal `number` the programs that it has started, and so on.

    What a program has started is its own to signal: a data loader must live until its trainer has saved.
    """
    if _name(pid) not in SHELLS or _catches(pid, number):
        return [pid]
    own = [child for child in descendants(pid) if (found := stat(child)) is not None and found.ppid == pid]
    return [program for child in own for program in programs(child, number)] or [pid]


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal. Source: proc_pid_status(5), `SigCgt`."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            fields = dict(line.split(b":", 1) for line in file.read().splitlines() if b":" in line)
        return bool(int(fields[b"SigCgt"], 16) >> (number - 1) & 1)
    except (OSError, KeyError, ValueError):
        return False


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", "rb", buffering=0) as file:
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
