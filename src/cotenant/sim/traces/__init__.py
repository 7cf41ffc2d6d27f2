"""Traces to replay: those in the package by name, others by path; the registered formats: one line each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cotenant.core.errors import UnknownName, UsageError
from cotenant.sim.trace import Trace
from cotenant.sim.traces import alibaba, carma, columns, philly, slurm_logs
from cotenant.sim.traces.rows import TraceFormat, head
from cotenant.sim.workloads import DATA_PATH

FORMATS: Mapping[str, TraceFormat] = {
    each.name: each for each in (philly.FORMAT, *slurm_logs.FORMATS, *alibaba.FORMATS, *carma.FORMATS, columns.FORMAT)
}
"""By name, in the order in which they are asked whether a file is theirs: the most particular first."""


PHILLY = "philly"
PHILLY_NOTE = "jobs 56250 to 61249 of 82247 of Philly, the 5,000 in a row most like all"

DEFAULT_GPUS: Mapping[str, str] = {PHILLY: "400xA100-40GB"}
"""GPUs on which a shipped trace is worth a look: Philly's jobs keep 457 at work where each has its own."""


def shipped() -> tuple[str, ...]:
    """Names of the traces in the package."""
    return (*carma.shipped(), PHILLY)


def default_gpus(name: str | None) -> str:
    """The GPUs to replay that trace on if nobody says which."""
    return DEFAULT_GPUS.get(name or "", "4xA100-40GB")


def load(name: str, *, format: str | None = None) -> Trace:  # noqa: A002 - what users call it
    """The trace of that name, or in the file at that path, in the format it looks like or is said to be.

    Raises:
        UnknownName: no such trace or format; UsageError: no reader knows the file; JobFileError: it is damaged.
    """
    if format is not None and format not in FORMATS:
        raise UnknownName("trace format", format, FORMATS)
    if name == PHILLY:
        whole = columns.read(DATA_PATH / "traces_philly.csv.gz")
        return Trace(PHILLY, whole, source="sim/data/traces_philly.csv.gz", notes=(PHILLY_NOTE,))
    if name in shipped():
        return carma.read_shipped(name)
    path = Path(name)
    if not path.is_file():
        known = UnknownName("trace", name, shipped())
        raise UsageError(known.message, hint=known.hint or "give one of these names, or the path of a file")
    if format is not None:
        return FORMATS[format].read(path)
    first = head(path)
    for reader in FORMATS.values():
        if reader.recognizes(path, first):
            return reader.read(path)
    raise UsageError(
        f"`{path}` is no trace of a known format (known: {', '.join(FORMATS)})", hint="say which with `--trace-format`"
    )
