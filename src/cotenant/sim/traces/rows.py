"""What trace formats share: rows of a CSV table, plain or gzipped, with errors that name the line."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from cotenant.core.errors import JobFileError, UsageError
from cotenant.sim.trace import Trace, TraceJob, from_zero

HEAD_CHARS = 4096


def read_text(path: Path) -> str:
    """The text of a file, gzipped or not.

    Raises:
        UsageError: it cannot be read, or is not text.
    """
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except (OSError, EOFError) as error:
        raise UsageError(f"cannot read trace `{path}`: {_reason(error)}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"trace `{path}` is not text") from error


def head(path: Path) -> str:
    """The first characters of a file, gzipped or not; empty if it is not text."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as file:
            return file.read(HEAD_CHARS).decode("utf-8-sig", errors="ignore")
    except (OSError, EOFError) as error:
        raise UsageError(f"cannot read trace `{path}`: {_reason(error)}") from error


def columns_of(text: str) -> list[str]:
    """Column names of a table, from the first line that is not a comment."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            return [cell.strip() for cell in _cells(line)]
    return []


class TraceRow:
    """A row of a table; errors name its file and line."""

    __slots__ = ("_path", "_values", "line")

    def __init__(self, path: Path, line: int, values: Mapping[str, str | None]) -> None:
        self._path = path
        self._values = values
        self.line = line

    def text(self, name: str, default: str = "") -> str:
        """The cell, stripped; `default` if it is empty or missing."""
        return (self._values.get(name) or default).strip()

    def first_text(self, names: Iterable[str]) -> str:
        """The first of these cells that is neither empty nor missing; empty if there is none."""
        for name in names:
            text = self.text(name)
            if text:
                return text
        return ""

    def number(self, name: str) -> float | None:
        """The number in the cell; None if it is empty, NaN or infinite.

        Raises:
            JobFileError: it is not a number.
        """
        text = self.text(name)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isfinite(value):
            return value
        if text.lower() in ("", "nan", "none", "null", "inf"):
            return None
        raise self.error(f"`{name}` is `{text[:40]}`, wanted a number")

    def time_s(self, name: str) -> float | None:
        """The time in the cell, a number of seconds or a date and time (UTC without a zone); None if it is empty."""
        text = self.text(name)
        if text.lower() in ("", "nan", "none", "null", "unknown"):
            return None
        try:
            return float(text)
        except ValueError:
            pass
        try:
            found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError as error:
            raise self.error(f"`{name}` is `{text[:40]}`, wanted seconds or a date and time") from error
        return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()

    def error(self, reason: str) -> JobFileError:
        """An error at this line."""
        return JobFileError(str(self._path), self.line, reason)


def rows(path: Path, *, columns: Sequence[str] | None = None, wanted: Sequence[str] = ()) -> Iterator[TraceRow]:
    """The rows of a CSV table; pass `columns` if its first line does not name them.

    Raises:
        JobFileError: a column of `wanted` is missing.
        UsageError: the file cannot be read.
    """
    lines = _lines(read_text(path))
    titles = list(columns) if columns is not None else None
    for number, line in lines:
        cells = _cells(line)
        if titles is None:
            titles = [cell.strip() for cell in cells]
            missing = [column for column in wanted if column not in titles]
            if missing:
                raise JobFileError(str(path), number, f"no column `{missing[0]}` (found: {', '.join(titles)})")
            continue
        yield TraceRow(path, number, dict(zip(titles, cells)))  # noqa: B905 - a short row has empty cells


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(io.StringIO(text), start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.rstrip("\r\n")


def _cells(line: str) -> list[str]:
    """Most lines have no quotes, and a reader for each would cost three times as much."""
    return next(csv.reader([line])) if '"' in line else line.split(",")


def _reason(error: Exception) -> str:
    reason = getattr(error, "strerror", None)
    return str(reason or error).lower()


@dataclass(slots=True)
class Collected:
    """The jobs of a trace file, and how many rows were left out for which reason."""

    jobs: list[TraceJob] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add(self, job: TraceJob) -> None:
        """Add a job."""
        self.jobs.append(job)

    def skip(self, reason: str) -> None:
        """Leave a row out."""
        self.left_out[reason] += 1

    def trace(self, name: str, path: Path, *notes: str) -> Trace:
        """The trace; its first job is submitted at 0.

        Raises:
            UsageError: it has no job.
        """
        counts = [f"{count} left out: {reason}" for reason, count in sorted(self.left_out.items())]
        if not self.jobs:
            raise UsageError(f"trace `{path}` has no jobs to replay", hint="; ".join(counts) or None)
        return Trace(name, from_zero(self.jobs), source=str(path), notes=(*notes, *counts))


def stem(path: Path) -> str:
    """The name of a file without its extensions."""
    return path.name.split(".")[0]
