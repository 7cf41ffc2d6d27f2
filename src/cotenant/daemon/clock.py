"""The daemon's time."""

from __future__ import annotations

import time

MAX_AHEAD_S = 86400.0
"""A journal that is further ahead of the wall clock than this was written by a clock that was wrong."""


class Clock:
    """Seconds since 1970 that never run backwards, whatever is done to the wall clock.

    Not while the daemon lives, and not over a restart either: time goes on from `not_before_s`, that of the newest
    event in the journal, if the wall clock is behind it by no more than a day.
    """

    def __init__(self, *, not_before_s: float = 0.0) -> None:
        now_s = time.time()
        if now_s < not_before_s <= now_s + MAX_AHEAD_S:
            now_s = not_before_s
        self._offset_s = now_s - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return time.monotonic() + self._offset_s
