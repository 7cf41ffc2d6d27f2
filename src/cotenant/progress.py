"""Lets a training script tell how fast it goes, with one line in its loop:

    from cotenant.progress import step
    ...
    step()

The daemon learns from it how much jobs on one GPU slow each other down. Without the daemon it does nothing. Of several
processes of a job the first one that calls tells. Standard library only; what goes wrong here is nobody's trouble.

Without this package, any program may do the same: now and then write `COUNT SECONDS` and a line end to the file that
`$COTENANT_PROGRESS` names, the steps made so far and a clock's reading, of a clock that does not jump.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import time

__all__ = ["at", "step"]

MIN_INTERVAL_S = 0.2
"""Between two writes: a step costs less than a microsecond, a write a few."""
RECORD_BYTES = 48


class _ProgressWriter:
    """Writes to the file of this process' job; `descriptor` is -1 where there is nobody to tell."""

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
                os.close(descriptor)  # another process of the job tells already
                return
            self.descriptor = descriptor
            atexit.register(self.write)

    def tell(self) -> None:
        if self.descriptor >= 0 and time.monotonic() - self.written[1] >= MIN_INTERVAL_S:
            self.write()

    def write(self) -> None:
        if self.count == self.written[0] or os.getpid() != self.pid:
            return  # a fork of the one that tells has a count of its own
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
    """So many steps more have been made."""
    teller = _get_writer()
    teller.count += steps
    teller.tell()


def at(count: float) -> None:
    """So many steps have been made in all."""
    teller = _get_writer()
    teller.count = float(count)
    teller.tell()
