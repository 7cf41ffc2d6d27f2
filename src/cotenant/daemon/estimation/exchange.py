"""One request and its answer over the pipes of a process that runs a user's code: all that it writes is bounded."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Container
from typing import IO

MAX_ANSWER_BYTES = 2**20
MAX_LOG_BYTES = 2**24
"""Most bytes of stderr during one request: honest estimators write the last 4 KB of a script's output there."""
LOG_TAIL_BYTES = 2**18
PIECE_BYTES = 2**16


class WorkerOutputError(Exception):
    """The process wrote what it may not, or too much. The text is the reason, for people."""


class Exchange:
    """Sends a line to `process` and reads one. Memory is bounded by `MAX_ANSWER_BYTES` and `LOG_TAIL_BYTES`."""

    def __init__(self, process: subprocess.Popen[bytes], request: bytes) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._unsent = memoryview(request + b"\n")
        self._answer = bytearray()
        self._log = bytearray()
        self._logged_bytes = 0
        self._line: bytes | None = None

    def run(self, timeout_s: float) -> bytes | None:
        """The line that the process answers; None if it ended without one.

        Raises:
            TimeoutError: it did not answer within `timeout_s`.
            WorkerOutputError: it wrote too much, or more than one line.
        """
        deadline_s = time.monotonic() + timeout_s
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        ended = _pidfd(self._process.pid)
        try:
            with selectors.DefaultSelector() as ends:
                ends.register(self._stdin, selectors.EVENT_WRITE)
                ends.register(self._stdout, selectors.EVENT_READ)
                ends.register(self._stderr, selectors.EVENT_READ)
                if ended is not None:  # a child that outlives its watchdog keeps the pipes open
                    ends.register(ended, selectors.EVENT_READ)
                is_open = True
                while is_open:
                    left_s = deadline_s - time.monotonic()
                    ready = {key.fileobj for key, _ in ends.select(left_s)} if left_s > 0 else set()
                    if not ready:
                        raise TimeoutError
                    is_open = self._advance(ends, ready, has_ended=ended in ready)
        finally:
            if ended is not None:
                os.close(ended)
        self._add_log(_read(self._stderr))  # what the process wrote before its answer
        return self._line

    @property
    def log(self) -> bytes:
        """The end of what the process wrote to stderr."""
        return bytes(self._log[-LOG_TAIL_BYTES:])

    def _advance(self, ends: selectors.BaseSelector, ready: Container[object], *, has_ended: bool) -> bool:
        """Write and read what is possible; returns False once there is an answer, or nothing more to come."""
        if self._stdin in ready:
            self._unsent = _write(self._stdin, self._unsent)
            if not self._unsent:
                ends.unregister(self._stdin)
        if self._stderr in ready and not self._add_log(_read(self._stderr)):
            ends.unregister(self._stderr)
        if self._stdout in ready:
            return self._add_answer(_read(self._stdout))
        return not has_ended

    def _add_answer(self, piece: bytes | None) -> bool:
        """Append a piece of the answer; returns False if it is complete, or at its end."""
        if piece is None:
            return True
        self._answer += piece
        if len(self._answer) > MAX_ANSWER_BYTES:
            raise WorkerOutputError(f"it is longer than {MAX_ANSWER_BYTES} bytes")
        if not piece:
            self._line = bytes(self._answer) or None
            return False
        if b"\n" not in piece:  # earlier pieces were searched before
            return True
        line, _, excess = self._answer.partition(b"\n")
        if excess:
            raise WorkerOutputError("it has more than one line")
        self._line = bytes(line)
        return False

    def _add_log(self, piece: bytes | None) -> bool:
        """Append a piece of stderr; returns False at its end."""
        if piece is None:
            return True
        self._logged_bytes += len(piece)
        if self._logged_bytes > MAX_LOG_BYTES:
            raise WorkerOutputError(f"its process wrote more than {MAX_LOG_BYTES} bytes to stderr")
        self._log += piece
        if len(self._log) > 2 * LOG_TAIL_BYTES:
            del self._log[:-LOG_TAIL_BYTES]
        return bool(piece)


def has_output(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process has written to stdout, or closed it."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as ends:
        ends.register(process.stdout, selectors.EVENT_READ)
        return bool(ends.select(0))


def _read(pipe: IO[bytes]) -> bytes | None:
    """The next piece of a non-blocking pipe; empty at its end, None if there is nothing at present."""
    try:
        return os.read(pipe.fileno(), PIECE_BYTES)
    except BlockingIOError:
        return None


def _write(pipe: IO[bytes], unsent: memoryview) -> memoryview:
    """Write what the pipe takes; returns the rest, which is empty if the reader is gone."""
    try:
        return unsent[os.write(pipe.fileno(), unsent) :]
    except BlockingIOError:
        return unsent
    except BrokenPipeError:
        return unsent[:0]


def _pidfd(pid: int) -> int | None:
    """A descriptor that turns readable when our child `pid` ends; None before Linux 5.3 (pidfd_open(2))."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None
