"""Whether a process runs."""

from __future__ import annotations

from cotenant.osutil import procfs


def is_running(pid):
    """Whether the process is there and not a zombie, which nobody may collect in a container, or late."""
    return procfs.start_ticks(int(pid)) is not None
