"""The daemon's time.

A module of its own: everything else in the daemon gets its time as a function.
"""

from __future__ import annotations

import time

MAX_AHEAD_S = 86400.0
"""A journal further ahead of the wall clock than this was written under a wrong clock, and is ignored."""


class Clock:
    """Seconds since 1970 that never run backwards, even when the wall clock is set back.

    After a restart, time goes on from `not_before_s`, the time of the newest journaled event, unless the wall clock is
    more than `MAX_AHEAD_S` behind it.
    """

    def __init__(self, *, not_before_s: float = 0.0) -> None:
        now_s = time.time()
        if now_s < not_before_s <= now_s + MAX_AHEAD_S:
            now_s = not_before_s
        self._offset_s = now_s - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return time.monotonic() + self._offset_s
