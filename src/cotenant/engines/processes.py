"""Processes of this machine, by an identity that a reused pid cannot fake."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.job import ProcessId

PROC = Path("/proc")
KERNEL_THREAD = 0x00200000  # PF_KTHREAD in include/linux/sched.h
EXEC_TIMEOUT_S = 1.0
"""A process is between two programs for microseconds, or as long as others have the processors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """Fields of /proc/PID/stat. Source: proc_pid_stat(5).

    Attributes:
        is_execing: in execve(2), where it has no environment any more and none yet, or about to end. So looks every
            process of which we may not read more.
    """

    pid: int
    state: str
    parent: int
    session: int
    start_ticks: int
    is_execing: bool


@functools.cache
def boot_id() -> str:
    """Names this boot of the machine."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def read_stat(pid: int) -> ProcessStat | None:
    """The process, zombies included; None if there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The program's name, in parentheses, may itself hold parentheses: what counts follows the last one.
    fields = text.rpartition(")")[2].split()
    return ProcessStat(
        pid=pid,
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        is_execing=int(fields[48]) == 0 and not int(fields[6]) & KERNEL_THREAD,
    )


def identity(pid: int) -> ProcessId | None:
    """Identity of a living process."""
    found = read_stat(pid)
    return None if found is None else ProcessId(pid=pid, start_ticks=found.start_ticks, boot_id=boot_id())


def is_alive(process: ProcessId) -> bool:
    """Whether this very process runs: same boot, same start, and not a zombie."""
    if process.boot_id != boot_id():
        return False
    found = read_stat(process.pid)
    return found is not None and found.start_ticks == process.start_ticks and found.state != "Z"


def open_pidfd(process: ProcessId) -> int | None:
    """A descriptor that turns readable when `process` ends; None where it has ended or the kernel has no pidfd."""
    opener: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    if opener is None:
        return None
    try:
        descriptor = opener(process.pid)
    except OSError:
        return None
    if is_alive(process):  # checked after opening: the descriptor is of this process or of nobody
        return descriptor
    os.close(descriptor)
    return None


def send_signal(process: ProcessId, number: signal.Signals) -> bool:
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


def all_stats() -> dict[int, ProcessStat]:
    """Every process, by pid."""
    found = (read_stat(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return {each.pid: each for each in found if each is not None}


def ancestors(pid: int) -> Iterable[ProcessStat]:
    """`pid` itself, its parent, and so on up to init."""
    seen = set()
    while pid > 0 and pid not in seen:
        seen.add(pid)
        found = read_stat(pid)
        if found is None:
            return
        yield found
        pid = found.parent


def has_env_tag(pid: int, env_tag: Mapping[str, str]) -> bool | None:
    """Whether the process was started with all of `mark` in its environment. False where we may not look.

    None while it cannot be told: the process is becoming another program.
    """
    environment = PROC / str(pid) / "environ"
    try:
        text = environment.read_bytes()
        if not text:
            found = read_stat(pid)
            if found is not None and found.is_execing:
                return None
            text = environment.read_bytes()  # it may have come between two looks
    except OSError:
        return False
    entries = text.split(b"\0")
    return all(f"{key}={value}".encode() in entries for key, value in env_tag.items())


def kill_leftovers(known: Collection[ProcessId], env_tag: Mapping[str, str], *, timeout_s: float) -> int:
    """SIGKILL what is left of an attempt; returns how many processes were still alive after `timeout_s`.

    Of the attempt are the `known` processes, all that carry `mark`, and whoever shares a session with one of
    these. A session's number goes to strangers once its last member has ended: it proves nothing alone.
    """
    began_s = time.monotonic()
    while True:
        stats = [each for each in all_stats().values() if each.state != "Z" and each.pid != os.getpid()]
        marked = {each.pid: has_env_tag(each.pid, env_tag) for each in stats}
        ours = {each.pid for each in stats if marked[each.pid] or _is_one_of(each, known)}
        sessions = {each.session for each in stats if each.pid in ours}
        doomed = ours | {each.pid for each in stats if each.session in sessions}
        passed_s = time.monotonic() - began_s
        untold = None in marked.values() and passed_s < EXEC_TIMEOUT_S
        if passed_s > timeout_s or not (doomed or untold):
            return len(doomed)
        for pid in doomed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _is_one_of(found: ProcessStat, known: Collection[ProcessId]) -> bool:
    return any(
        each.pid == found.pid and each.start_ticks == found.start_ticks and each.boot_id == boot_id() for each in known
    )
