"""Ends a trace a little before its starter would kill it, so that the answer can say where the script was."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cotenant.tracing import places

_EARLIER_S = 2.0
_EARLIER_SHARE = 0.2


def watch(deadline: Mapping[str, Any] | None, call: Callable[[float, str | None], object]) -> None:
    """Call `call`, from another thread, with the limit in seconds and what the calling thread is at by then.

    `deadline`: `at_s` by the system's monotonic clock, and `timeout_s`, of which it is the end; None: never.
    """
    if deadline is None:
        return
    timeout_s = float(deadline["timeout_s"])
    left_s = float(deadline["at_s"]) - time.monotonic() - min(_EARLIER_S, _EARLIER_SHARE * timeout_s)
    watched = threading.get_ident()
    timer = threading.Timer(max(0.0, left_s), lambda: call(timeout_s, places.of_thread(watched)))
    timer.daemon = True
    timer.start()
