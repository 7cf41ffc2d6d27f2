"""Ends a trace shortly before the parent would kill it, so that the answer can say where the script was.

A module of its own: it starts before torch is imported, and must not import it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.process.work_clock import WorkClock
from cotenant.tracing.sandbox.overlay import real_open

_MARGIN_S = 2.0
_MARGIN_SHARE = 0.2
_EVENT_S = 4e-6  # to write one event: measured 0.9e-6 alone, twice that beside a running script, and cores are shared
_POLL_S = 0.05


class DeadlineThread(threading.Thread):
    """Calls `call` once, when it is time to answer. An optimizer step renews the limit."""

    def __init__(
        self,
        at_s: float,
        timeout_s: float,
        call: Callable[[float, str | None], object],
        events: Callable[[], int],
        steps: Callable[[], int] = lambda: 0,
        renewed: Path | None = None,
    ) -> None:
        super().__init__(daemon=True)
        self._timeout_s, self._call, self._events, self._steps = timeout_s, call, events, steps
        self._renewed = renewed
        self._clock = WorkClock(at_s - timeout_s)
        self._end_s = timeout_s
        self._steps_before = 0
        self._watched = threading.get_ident()

    def run(self) -> None:
        """Wait until it is time; every event that is recorded meanwhile makes that earlier."""
        while (left_s := self._left_s()) > 0:
            time.sleep(max(_POLL_S, left_s / 2))
        self.over()

    def _left_s(self) -> float:
        now_s, steps = self._clock.now_s(), self._steps()
        if steps > self._steps_before:
            self._steps_before, self._end_s = steps, now_s + self._timeout_s
            if self._renewed is not None:
                # The parent reads when this file changed. The script's `open` is redirected to its overlay.
                os.close(real_open(self._renewed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        return self._end_s - now_s - reserve_s(self._timeout_s, self._events())

    def over(self) -> None:
        """Call `call` with the limit and the present line of the watched thread."""
        self._call(self._timeout_s, script_location.thread_location(self._watched))


def reserve_s(timeout_s: float, events: int) -> float:
    """Seconds before the end of `timeout_s` at which to start an answer of so many events."""
    return min(_MARGIN_S, _MARGIN_SHARE * timeout_s) + min(events * _EVENT_S, timeout_s / 2)


def start_deadline(
    deadline: Mapping[str, Any] | None,
    call: Callable[[float, str | None], object],
    events: Callable[[], int],
    steps: Callable[[], int] = lambda: 0,
    renewed: Path | None = None,
) -> None:
    """Call `call` from another thread, with the limit in seconds and the line that the calling thread is at by then.

    `deadline`: `at_s` by the system's monotonic clock, and `timeout_s`, which ends then on an idle machine; None: no
    limit. `events`, `steps`: the number of events and of optimizer steps so far. `renewed`: a file to change when a
    step renews the limit.
    """
    if deadline is None:
        return
    at_s, timeout_s = float(deadline["at_s"]), float(deadline["timeout_s"])
    DeadlineThread(at_s, timeout_s, call, events, steps, renewed).start()
