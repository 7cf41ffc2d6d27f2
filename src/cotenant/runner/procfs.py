"""What /proc says of processes: who they are, and who descends from whom."""

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
    """Names this boot of the machine, so that a pid of an earlier one is never believed."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def stat(pid: int) -> Stat | None:
    """The process, or None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses: what counts follows the last one.
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
        for each in children.get(front.pop(), ()):
            front.append(each.pid)
            if each.state != "Z":
                family.append(each.pid)
    return family
