"""Runs a command that must not outlive the daemon. Run as a script, on the standard library alone.

    python -I -S parent_watchdog.py LIFELINE COMMAND...

LIFELINE is the number of an inherited descriptor: the reading end of a pipe whose writing end only the daemon has.
When that end closes, even by `kill -9`, or on SIGTERM, the command ends with everything it started.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
"""Source: prctl(2)."""


def main(lifeline: int, command: list[str]) -> int:
    """Run `command`; its exit code, or 128 + N when signal N ended it."""
    # prctl(2): orphaned descendants become our children, so a process cannot escape by setsid and a double fork.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.set_inheritable(lifeline, False)  # noqa: FBT003 (the standard library's signature)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    child = os.fork()
    if child == 0:
        _exec_child(command)
    poller = select.poll()
    poller.register(lifeline, select.POLLIN | select.POLLHUP)
    poller.register(read_end, select.POLLIN)
    code: int | None = None
    while code is None:
        ready = [descriptor for descriptor, _ in poller.poll()]
        signals = os.read(read_end, 64) if read_end in ready else b""
        code = _reap(child)
        if code is None and (lifeline in ready or signal.SIGTERM in signals or signal.SIGINT in signals):
            break
    _kill_all(child)
    return 128 + signal.SIGKILL if code is None else code


def _exec_child(command: list[str]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    try:
        os.execvp(command[0], command)  # noqa: S606 (no shell)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(127)


def _reap(child: int) -> int | None:
    """Reap ended processes; returns the exit code of `child` if it is among them."""
    code = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                number = os.waitstatus_to_exitcode(status)
                code = 128 - number if number < 0 else number
    return code


def _kill_all(child: int) -> None:
    """Kill the child's process group, then our children until none is left: each kill may reparent more to us."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(ChildProcessError):
        while True:
            # Kernels without CONFIG_PROC_CHILDREN have no such file; there, only the group is killed.
            for pid in listing.read_text().split() if listing.exists() else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            os.waitpid(-1, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
