"""Runs a command that must not outlive the daemon. Run as a script, on the standard library alone.

    python -I -S parent_watchdog.py LIFELINE SETTINGS COMMAND...

LIFELINE is the number of an inherited descriptor: the reading end of a pipe whose writing end only the daemon has.
When that end closes, even by `kill -9`, or on SIGTERM, the command ends with everything it started.

SETTINGS is a JSON object: `user`, `group` and `groups` to become before the command starts, `limits` by their names in
getrlimit(2), and `cgroup`, the folder of a cgroup to put the command into; each may be absent. The watchdog itself
stays the daemon's user, so that a command of another user cannot signal it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Source: prctl(2)."""


def main(lifeline: int, settings: dict[str, Any], command: list[str]) -> int:
    """Run `command`; its exit code, or 128 + N when signal N ended it."""
    # prctl(2): orphaned descendants become our children, so a process cannot escape by setsid and a double fork.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.set_inheritable(lifeline, False)  # noqa: FBT003 (the standard library's signature)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    watchdog = os.getpid()
    child = os.fork()
    if child == 0:
        _exec_child(watchdog, settings, command)
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
    _kill_all(child, settings.get("cgroup"))
    return 128 + signal.SIGKILL if code is None else code


def _exec_child(watchdog: int, settings: dict[str, Any], command: list[str]) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    try:
        if "cgroup" in settings:
            with contextlib.suppress(OSError):  # it may have been removed: the other ways to end the command remain
                Path(settings["cgroup"], "cgroup.procs").write_text("0")
        _set_limits(settings.get("limits") or {})
        if "user" in settings:
            os.setgroups(settings["groups"])
            os.setresgid(*[settings["group"]] * 3)
            os.setresuid(*[settings["user"]] * 3)
        # After the change of user, which clears it (prctl(2)); a watchdog that ended before is not noticed.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != watchdog:
            os._exit(128 + signal.SIGKILL)
        os.execvp(command[0], command)  # noqa: S606 (no shell)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    os._exit(127)


def _set_limits(limits: dict[str, list[int]]) -> None:
    """Set (soft, hard) limits, -1 for unlimited, as far as this process may; as `runner/privileges.py` does it."""
    for name, (soft, hard) in limits.items():
        number = getattr(resource, f"RLIMIT_{name.upper()}", None)
        if number is None:
            continue
        try:
            resource.setrlimit(number, (soft, hard))
        except (OSError, ValueError):
            _, highest = resource.getrlimit(number)
            bounds = [limit for limit in (soft, highest) if limit != resource.RLIM_INFINITY]
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(number, (min(bounds, default=resource.RLIM_INFINITY), highest))


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


def _kill_all(child: int, cgroup: str | None) -> None:
    """Kill the child's cgroup and process group, then our children until none is left: a kill may reparent more."""
    if cgroup is not None:
        with contextlib.suppress(OSError):  # cgroup.kill came with Linux 5.14
            Path(cgroup, "cgroup.kill").write_text("1")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(ChildProcessError):
        while True:
            # Kernels without CONFIG_PROC_CHILDREN have no such file; there, only the group is killed. All are stopped
            # before the first is killed: processes that start each other faster than they are killed cannot win.
            pids = [int(pid) for pid in listing.read_text().split()] if listing.exists() else []
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in pids:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
            os.waitpid(-1, 0)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
    if cgroup is not None:
        with contextlib.suppress(OSError):  # a daemon that was killed removes nothing
            Path(cgroup).rmdir()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]))
