"""The daemon's time."""

from __future__ import annotations

import time


class Clock:
    """Seconds since 1970 that never run backwards while the daemon lives, whatever is done to the wall clock."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return time.monotonic() + self._offset_s
