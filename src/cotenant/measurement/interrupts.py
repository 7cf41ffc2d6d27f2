"""Signals while something is changed that must be put back: the mode of a GPU, a server, other processes.

Ctrl-C reaches the whole foreground process group, so a command that puts something back runs in a session of its own
(`start_new_session`), and this process notes signals and acts on them afterwards. A module of its own: everything that
puts something back uses it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

DEFERRED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP act at the end of the `with` block only; the last one that came counts.

    Outside of the main thread, which alone gets signals, nothing is changed (Python, `signal.signal`).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    before = {number: signal.signal(number, note) for number in DEFERRED}
    try:
        yield
    finally:
        for number, handler in before.items():
            # None stands for a handler that was not installed from Python.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if pending:
            signal.raise_signal(pending[-1])
