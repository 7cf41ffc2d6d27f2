"""The limit of open files (RLIMIT_NOFILE) of this process, and of programs that it starts.

A module of its own: the daemon raises the limit, and the engine restores it for jobs.
"""

from __future__ import annotations

import resource
from contextlib import suppress

_before: list[tuple[int, int]] = []  # the limit before it was raised; empty until then


def raise_open_files() -> int:
    """Raise the soft limit to the hard one; returns it. Each connection and each running job needs a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # e.g. above fs.nr_open in a container
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            _before[:] = [(soft, hard)]
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def restore_open_files(pid: int) -> None:
    """Give the process `pid` the limit that this process had at first: programs of others may use select(2).

    select(2) fails for descriptors above 1023, so a soft limit above 1024 is for programs that know better.
    """
    if _before:
        with suppress(OSError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _before[0])
