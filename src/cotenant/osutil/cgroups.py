"""Groups of processes by cgroup v2, where this process may make them: as root, or where systemd delegates.

A process cannot leave its cgroup without write access to a common ancestor, and `cgroup.kill` ends all its processes at
once, including those that are just starting others. Source: Documentation/admin-guide/cgroup-v2.rst of Linux.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
MEMBERSHIP = Path("/proc/self/cgroup")
REMOVE_TIMEOUT_S = 1.0
"""A killed process leaves its cgroup once it has been reaped, milliseconds later."""
POLL_S = 0.01


def own_folder() -> Path | None:
    """The folder of the cgroup that this process is in; None without cgroup v2."""
    try:
        # proc_pid_mountinfo(5): the fields after the separator `-` are the type, the source, and its options.
        lines = (line.split(" ") for line in MOUNTS.read_text().splitlines())
        mounts = [fields for fields in lines if fields[fields.index("-") + 1] == "cgroup2"]
        # cgroups(7): the line of the unified hierarchy begins with `0::`.
        path = next(line[3:] for line in MEMBERSHIP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    for fields in mounts:
        root, point = fields[3], fields[4]
        if path == root or path.startswith(f"{root.rstrip('/')}/"):
            return Path(point, path.removeprefix(root).lstrip("/"))
    return None


def create(name: str) -> Path | None:
    """The folder of a cgroup `name` below our own, without processes; None where we may not make one.

    If it exists, its processes are killed.
    """
    own = own_folder()
    if own is None:
        return None
    folder = own / name
    try:
        folder.mkdir(exist_ok=True)
        kill(folder)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    return folder


def kill(folder: Path) -> None:
    """Kill all processes of a cgroup and wait for their end.

    Raises:
        OSError: we may not, or the kernel is older than 5.14.
    """
    (folder / "cgroup.kill").write_text("1")
    give_up_s = time.monotonic() + REMOVE_TIMEOUT_S
    while "populated 1" in (folder / "cgroup.events").read_text() and time.monotonic() < give_up_s:
        time.sleep(POLL_S)


def remove(folder: Path) -> None:
    """Kill what is left in a cgroup and remove it; ignored if it is gone."""
    with contextlib.suppress(OSError):
        kill(folder)
        folder.rmdir()
