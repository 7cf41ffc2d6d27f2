"""Processes of this machine by an identity that a reused pid cannot fake: pid, start time and boot.

Source of all fields: proc_pid_stat(5).
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from cotenant.core.job import ProcessId

PROC = "/proc"
KERNEL_THREAD = 0x00200000  # PF_KTHREAD, include/linux/sched.h


class Identity(Protocol):
    """What names a process: a `core.job.ProcessId`, or whatever has the same three attributes."""

    @property
    def pid(self) -> int: ...
    @property
    def start_ticks(self) -> int: ...
    @property
    def boot_id(self) -> str: ...


class ProcessStat(NamedTuple):
    """Fields of /proc/PID/stat.

    Attributes:
        state: one letter; `Z` is a zombie.
        start_ticks: clock ticks from boot to its start.
        is_execing: the kernel shows no environment (`env_end` is 0): the process is inside execve(2), between the old
            program and the new, or about to end, or we may not look at it (ptrace(2), "access mode checking").
    """

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int
    is_execing: bool


@functools.cache
def boot_id() -> str:
    """Names this boot of the machine, so that a pid of an earlier boot is never taken for a living process."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def read_stat(pid: int) -> ProcessStat | None:
    """The process, zombies included; None if there is none."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    # Field 2 is the program's name in parentheses, and may hold spaces and parentheses: split after the last one.
    fields = text.rpartition(b")")[2].split()
    return ProcessStat(
        pid,
        fields[0].decode(),
        int(fields[1]),
        int(fields[3]),
        int(fields[19]),
        int(fields[48]) == 0 and not int(fields[6]) & KERNEL_THREAD,
    )


def start_ticks(pid: int) -> int | None:
    """Start time of a living process in clock ticks since boot; None for none and for a zombie."""
    found = read_stat(pid)
    return None if found is None or found.state == "Z" else found.start_ticks


def real_uid(pid: int) -> int | None:
    """The real user id of a process, zombies included; None if there is none."""
    try:
        with open(f"{PROC}/{pid}/status", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    # The owner of /proc/PID is no answer: it is root for a process that is not dumpable (proc(5)).
    line = text.partition(b"\nUid:")[2].split(None, 1)
    return int(line[0]) if line else None


def identity(pid: int) -> ProcessId | None:
    """Identity of a process, zombies included; None if there is none."""
    from cotenant.core.job import ProcessId

    found = read_stat(pid)
    return None if found is None else ProcessId(pid=pid, start_ticks=found.start_ticks, boot_id=boot_id())


def is_alive(process: Identity) -> bool:
    """Whether this very process runs: same boot, same start, and not a zombie."""
    return process.boot_id == boot_id() and start_ticks(process.pid) == process.start_ticks


def all_stats() -> list[ProcessStat]:
    """Every process of the machine."""
    found = (read_stat(int(name)) for name in os.listdir(PROC) if name.isdigit())
    return [stat for stat in found if stat is not None]


def descendants(root: int) -> list[int]:
    """Living children, grandchildren and so on of `root`, zombies left out."""
    children: dict[int, list[ProcessStat]] = {}
    for found in all_stats():
        children.setdefault(found.parent, []).append(found)
    family, front = [], [root]
    while front:
        for child in children.get(front.pop(), ()):
            front.append(child.pid)
            if child.state != "Z":
                family.append(child.pid)
    return family


def ancestors(pid: int) -> Iterator[ProcessStat]:
    """`pid` itself, its parent, and so on up to init."""
    seen = set()
    while pid > 0 and pid not in seen:
        seen.add(pid)
        found = read_stat(pid)
        if found is None:
            return
        yield found
        pid = found.parent


def session_pids(leader: int) -> set[int]:
    """`leader` and all processes of its session."""
    found = {leader}
    for name in os.listdir(PROC):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.getsid(int(name)) == leader:
                    found.add(int(name))
    return found


def open_pidfd(process: Identity) -> int | None:
    """A descriptor that turns readable when `process` ends; None where it has ended or there are no pidfds.

    Linux has pidfds since 5.3 (pidfd_open(2)).
    """
    opener: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        descriptor = opener(process.pid)
    except OSError:
        return None
    if is_alive(process):  # checked after opening: the descriptor is of this process or of none
        return descriptor
    os.close(descriptor)
    return None


def send_signal(process: Identity, number: signal.Signals) -> bool:
    """Signal this very process; False if it has ended."""
    descriptor = open_pidfd(process)
    if descriptor is not None:
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True
    if not is_alive(process):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
        return True
    return False


TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class UsageSample(NamedTuple):
    """CPU seconds that processes used until `at_s`, seconds since the epoch, and their resident bytes then."""

    at_s: float
    cpu_s: float
    rss_bytes: int


def session_usage(session: int) -> UsageSample:
    """CPU time and memory of all processes of a session; ended children that were waited for count as CPU time."""
    cpu_s, rss_bytes = 0.0, 0
    for pid in session_pids(session):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"{PROC}/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            # utime, stime, cutime, cstime: fields 14 to 17; rss: 24. `fields` begins with the third.
            cpu_s += sum(int(ticks) for ticks in fields[11:15]) / TICKS_PER_S
            rss_bytes += int(fields[21]) * PAGE_BYTES
    return UsageSample(time.time(), cpu_s, rss_bytes)
