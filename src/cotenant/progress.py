"""Reports the steps of a training script, with one line in its loop:

    from cotenant.progress import step
    ...
    step()

The daemon learns from it how much jobs on one GPU slow each other down. Without the daemon it does nothing. Of several
processes of a job the first one that calls reports. Standard library only; errors are ignored.

Any program can do the same without this package: from time to time write `COUNT SECONDS` and a newline to the file
that `$COTENANT_PROGRESS` names, the steps made so far and the reading of a monotonic clock.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import time

__all__ = ["at", "step"]

MIN_INTERVAL_S = 0.2
"""Between two writes: a step costs less than a microsecond, a write several."""
RECORD_BYTES = 48


class _ProgressWriter:
    """Writes to the progress file of this process' job; `descriptor` is -1 without one."""

    def __init__(self) -> None:
        self.count = 0.0
        self.descriptor = -1
        self.pid = os.getpid()
        self.written = (-1.0, 0.0)
        path = os.environ.get("COTENANT_PROGRESS")
        if not path:
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)  # another process of the job reports already
                return
            self.descriptor = descriptor
            atexit.register(self.write)

    def write_if_due(self) -> None:
        if self.descriptor >= 0 and time.monotonic() - self.written[1] >= MIN_INTERVAL_S:
            self.write()

    def write(self) -> None:
        if self.count == self.written[0] or os.getpid() != self.pid:
            return  # a forked child has a count of its own, but shares the descriptor
        now_s = time.monotonic()
        self.written = (self.count, now_s)
        with contextlib.suppress(OSError):
            os.pwrite(self.descriptor, f"{self.count:.3f} {now_s:.6f}\n".rjust(RECORD_BYTES).encode(), 0)


_writer: _ProgressWriter | None = None


def _get_writer() -> _ProgressWriter:
    global _writer
    if _writer is None:
        _writer = _ProgressWriter()
    return _writer


def step(steps: float = 1) -> None:
    """Report that `steps` more steps have been made."""
    writer = _get_writer()
    writer.count += steps
    writer.write_if_due()


def at(count: float) -> None:
    """Report that `count` steps have been made in all."""
    writer = _get_writer()
    writer.count = float(count)
    writer.write_if_due()
