"""The daemon's time, which no setting of the wall clock changes while attempts run."""

from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path

from cotenant.core.job import Running, Starting
from cotenant.osutil import atomic, procfs
from cotenant.scheduling.manager import Manager

MAX_AHEAD_S = 86400.0
"""A journal further ahead of the wall clock than this was written under a wrong clock, and is ignored."""
CLOCK_FILE = "clock.json"
"""In the state folder: the boot of the machine, and how far ahead of its monotonic clock the daemon's time is."""


class Clock:
    """Seconds since 1970 that never run backwards, even when the wall clock is set back.

    After a restart, time goes on from `not_before_s`, the time of the newest journaled event, unless the wall clock is
    more than `MAX_AHEAD_S` behind it. With `offset_s`, what the daemon before it was ahead of the monotonic clock, it
    goes on as that daemon's would have.
    """

    def __init__(self, *, not_before_s: float = 0.0, offset_s: float | None = None) -> None:
        now_s = time.time() if offset_s is None else time.monotonic() + offset_s
        if now_s < not_before_s <= now_s + MAX_AHEAD_S:
            now_s = not_before_s
        self.offset_s = now_s - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return time.monotonic() + self.offset_s


def restored_clock(state_dir: Path, manager: Manager) -> Clock:
    """The clock of a daemon that starts: while attempts run, that of the daemon before it, if the machine is still up.

    An attempt has run as long as the monotonic clock says, and so does its runner: a wall clock that was set forward
    meanwhile would exceed its time limit. Without attempts, and after a boot, the wall clock is right.
    """
    path = state_dir / CLOCK_FILE
    has_attempts = any(isinstance(job.state, (Starting, Running)) for job in manager.jobs.values())
    clock = Clock(not_before_s=manager.last_at_s, offset_s=_saved_offset_s(path) if has_attempts else None)
    try:
        atomic.write_text(path, json.dumps({"boot_id": procfs.boot_id(), "offset_s": clock.offset_s}))
    except OSError:  # on a full disk: the offset of an earlier daemon must not be taken for that of this one
        with contextlib.suppress(OSError):
            path.unlink()
    return clock


def _saved_offset_s(path: Path) -> float | None:
    try:
        saved = json.loads(path.read_bytes())
        offset_s = float(saved["offset_s"])
        return offset_s if saved["boot_id"] == procfs.boot_id() and math.isfinite(offset_s) else None
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
