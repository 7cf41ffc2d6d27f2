"""Traces to replay: those in the package by name, others by path; the registered formats: one line each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cotenant.core.errors import UnknownName, UsageError
from cotenant.sim.jobs import Trace
from cotenant.sim.traces import alibaba, carma, columns, philly, slurm_logs
from cotenant.sim.traces.rows import Reader, head

READERS: Mapping[str, Reader] = {
    each.name: each for each in (philly.READER, *slurm_logs.READERS, *alibaba.READERS, *carma.READERS, columns.READER)
}
"""By name, in the order in which they are asked whether a file is theirs: the most particular first."""


def shipped() -> tuple[str, ...]:
    """Names of the traces in the package."""
    return carma.shipped()


def load(name: str, *, format: str | None = None) -> Trace:  # noqa: A002 - what users call it
    """The trace of that name, or in the file at that path, in the format it looks like or is said to be.

    Raises:
        UnknownName: no such trace or format; UsageError: no reader knows the file; JobFileError: it is damaged.
    """
    if name in shipped():
        return carma.read_shipped(name)
    path = Path(name)
    if not path.is_file():
        known = UnknownName("trace", name, shipped())
        raise UsageError(known.message, hint=known.hint or "give one of these names, or the path of a file")
    if format is not None:
        if format not in READERS:
            raise UnknownName("trace format", format, READERS)
        return READERS[format].read(path)
    first = head(path)
    for reader in READERS.values():
        if reader.recognizes(path, first):
            return reader.read(path)
    raise UsageError(
        f"`{path}` is no trace of a known format (known: {', '.join(READERS)})", hint="say which with `--format`"
    )
