"""Logging: one line per record with time, level, message and the `key=value` pairs of `extra={"fields": {...}}`."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from cotenant.core.events import (
    AttemptExited,
    AttemptPlaced,
    AttemptStarted,
    EstimateReady,
    JobSubmitted,
    Journaled,
)

logger = logging.getLogger(__name__)

MAX_FILE_BYTES = 32 * 2**20
"""Of the log of a detached daemon; so much again is in FILE.1."""
MAX_ALIKE = 20
ALIKE_WINDOW_S = 60.0
ANONYMOUS_LOGGERS = ("uvicorn.error", "cotenant.daemon.auth.network")
"""What they log, whoever can connect can cause, thousands of times a second: requests that are no HTTP, bad tokens."""


class LineFormatter(logging.Formatter):
    """`2026-11-21T01:17:26.120Z info job submitted job=17 name=bert`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; a traceback follows on lines of its own."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = getattr(record, "fields", {})
        pairs = "".join(f" {key}={_value(value)}" for key, value in fields.items())
        line = f"{stamp}.{record.msecs:03.0f}Z {record.levelname.lower()} {record.getMessage()}{pairs}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def warnings_of(text: str) -> list[str]:
    """The warnings and errors in lines of `LineFormatter`, without their times."""
    records = (line.split(" ", 2) for line in text.splitlines())
    return [record[2] for record in records if len(record) == 3 and record[1] in {"warning", "error"}]


class RepetitionFilter(logging.Filter):
    """Lets `MAX_ALIKE` records of one message pass in `ALIKE_WINDOW_S`; the last and the next one name the rest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}  # begin and number of records, by message

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record."""
        now_s = self._clock()
        message = str(record.msg)  # without its arguments
        begin_s, count = self._windows.get(message, (now_s, 0))
        left_out = count - MAX_ALIKE
        if now_s - begin_s >= ALIKE_WINDOW_S:
            begin_s, count = now_s, 0
            if left_out > 0:
                _add_field(record, "left_out", left_out)
        self._windows[message] = begin_s, count + 1
        if count + 1 == MAX_ALIKE:
            _add_field(record, "next", f"more of these are left out for {ALIKE_WINDOW_S:g} s")
        return count < MAX_ALIKE


class RotatingHandler(logging.StreamHandler[IO[str]]):
    """Writes to stderr, which is `file`, opened to append. Beyond `max_bytes` its content goes to FILE.1.

    The file is truncated, not replaced: other processes of the daemon write to it as well.
    """

    def __init__(self, file: Path, max_bytes: int = MAX_FILE_BYTES, stream: IO[str] | None = None) -> None:
        super().__init__(stream or sys.stderr)
        self._file = file
        self._max_bytes = max_bytes

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, and rotate if the file is too large."""
        super().emit(record)
        with contextlib.suppress(OSError):
            if os.fstat(self.stream.fileno()).st_size > self._max_bytes:
                self._rotate()

    def _rotate(self) -> None:
        source = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # the limit holds although the copy fails, as it does on a full disk
                self._copy(source)
            os.ftruncate(source, 0)
        finally:
            os.close(source)

    def _copy(self, source: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        copy = os.open(f"{self._file}.1", flags, os.fstat(source).st_mode & 0o777)
        try:
            offset = 0
            while sent := os.sendfile(copy, source, offset, 2**20):
                offset += sent
        finally:
            os.close(copy)


def set_up(level: str, stream: IO[str] | None = None, *, file: Path | None = None) -> None:
    """Send all records of this process to `stream`, by default stderr. `file`: what stderr is, to be rotated."""
    handler = logging.StreamHandler(stream or sys.stderr) if file is None else RotatingHandler(file, stream=stream)
    handler.setFormatter(LineFormatter())
    for name in ANONYMOUS_LOGGERS:
        logging.getLogger(name).filters[:] = [RepetitionFilter()]
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # uvicorn logs its own start and stop at `info` (0.54, uvicorn/server.py, `Server.startup`).
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def log_event(event: Journaled) -> None:
    """Log one line about an event. The environment of a job is never logged: it holds secrets."""
    if not logger.isEnabledFor(logging.INFO):
        return
    fields: dict[str, object] = {"job": event.job_id}
    match event:
        case JobSubmitted(spec=spec):
            fields |= {"name": spec.name, "user": spec.user}
        case EstimateReady(estimate=estimate, error=error):
            fields |= {"bound_bytes": estimate.bound_bytes} if estimate is not None else {"error": error or ""}
        case AttemptExited(attempt=attempt, exit=ended):
            code = ended.exit_code if ended.signal is None else f"signal {ended.signal}"
            fields |= {"attempt": attempt, "reason": ended.reason, "code": code}
        case AttemptStarted(attempt=attempt, process=process):
            fields |= {"attempt": attempt, "pid": process.pid}
        case AttemptPlaced(attempt=attempt, placement=placement):
            fields |= {"attempt": attempt, "gpus": ",".join(placement.gpu_uuids)}
    logger.info(type(event).__name__, extra={"fields": fields})


def _add_field(record: logging.LogRecord, key: str, value: object) -> None:
    record.fields = {**getattr(record, "fields", {}), key: value}


def _value(value: object) -> str:
    text = str(value)
    return text if text and all(char.isprintable() and char not in ' "=' for char in text) else json.dumps(text)
