"""Logging: one line per record with time, level, message and the `key=value` pairs of `extra={"fields": {...}}`."""

from __future__ import annotations

import json
import logging
import sys
import time
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


def set_up(level: str, stream: IO[str] | None = None) -> None:
    """Send all records of this process to `stream`, by default stderr."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter())
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


def _value(value: object) -> str:
    text = str(value)
    return text if text and all(char.isprintable() and char not in ' "=' for char in text) else json.dumps(text)
