"""A clock that stands still while a process waits for a CPU, so that a limit does not depend on the machine's load.

It counts computing, sleeping and waiting for files; on an idle machine it is the wall clock.
Source: Linux, Documentation/scheduler/sched-stats.rst, `/proc/<pid>/schedstat`: nanoseconds on a runqueue.

A module of its own: the deadline and the parent process read the same clock.
"""

from __future__ import annotations

import os
import time
from pathlib import Path


class WorkClock:
    """Seconds since `began_s` by the monotonic clock, less those that `pid` waits for a CPU from now on."""

    def __init__(self, began_s: float, pid: int | str = "self") -> None:
        self._began_s = began_s
        self._tasks = f"/proc/{pid}/task"
        self._before_s = _waited_s(self._tasks)
        self._waited_s = 0.0

    def now_s(self) -> float:
        """The time; with threads that wait at the same time it may seem to stand still, but it does not go back."""
        self._waited_s = max(self._waited_s, _waited_s(self._tasks) - self._before_s)
        return max(0.0, time.monotonic() - self._began_s - self._waited_s)


class WorkLimit:
    """The end of a process after `timeout_s`, or as long after the last change of the file `renewed`."""

    def __init__(self, began_s: float, timeout_s: float, pid: int, renewed: Path) -> None:
        self._clock = WorkClock(began_s, pid)
        self._timeout_s = self._end_s = timeout_s
        self._renewed = renewed
        self._stamp = 0

    def is_over(self) -> bool:
        """Whether the process must end."""
        now_s = self._clock.now_s()
        try:
            stamp = self._renewed.stat().st_mtime_ns
        except OSError:
            stamp = 0
        if stamp != self._stamp:
            self._stamp, self._end_s = stamp, now_s + self._timeout_s
        return now_s >= self._end_s


def _waited_s(tasks: str) -> float:
    """Of the thread that waited longest: others wait for it, or for the same CPU."""
    longest = 0
    try:
        for task in os.scandir(tasks):
            longest = max(longest, int(Path(tasks, task.name, "schedstat").read_text().split()[1]))
    except (OSError, ValueError, IndexError):
        return longest / 1e9
    return longest / 1e9
