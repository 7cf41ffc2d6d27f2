"""Traces to replay: those shipped with the package, by name, and files in any registered format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cotenant.core.errors import UnknownName, UsageError
from cotenant.sim.trace import Trace
from cotenant.sim.traces import carma, columns
from cotenant.sim.traces.formats import TRACE_FORMATS, TraceFormat, recognize
from cotenant.sim.workloads import DATA_PATH

__all__ = ["DEFAULT_GPUS", "TRACE_FORMATS", "TraceFormat", "default_gpus", "load", "recognize", "shipped"]

PHILLY = "philly"
PHILLY_NOTE = "jobs 56250 to 61249 of 82247 of Philly, the 5,000 consecutive jobs most like the whole trace"

DEFAULT_GPUS: Mapping[str, str] = {PHILLY: "400xA100-40GB"}
"""Clusters of suitable size for shipped traces: with a GPU for every job, Philly's jobs use 457."""


def shipped() -> tuple[str, ...]:
    """Names of the traces in the package."""
    return (*carma.shipped(), PHILLY)


def default_gpus(name: str | None) -> str:
    """The cluster on which that trace is replayed unless another is given."""
    return DEFAULT_GPUS.get(name or "", "4xA100-40GB")


def load(name: str, *, format: str | None = None) -> Trace:  # noqa: A002 - the word of the command line
    """The shipped trace of that name, or the file at that path in `format` (recognized by default).

    Raises:
        UnknownName: there is no such format.
        UsageError: there is no such trace or file, or no format recognizes it.
        JobFileError: a row of the file is damaged.
    """
    if format is not None and format not in TRACE_FORMATS:
        raise UnknownName("trace format", format, TRACE_FORMATS)
    if name == PHILLY:
        whole = columns.read(DATA_PATH / "traces_philly.csv.gz")
        return Trace(PHILLY, whole, source="sim/data/traces_philly.csv.gz", notes=(PHILLY_NOTE,))
    if name in shipped():
        return carma.read_shipped(name)
    path = Path(name)
    if not path.is_file():
        unknown = UnknownName("trace", name, shipped())
        raise UsageError(unknown.message, hint=unknown.hint or "give one of these names, or the path of a file")
    return TRACE_FORMATS.get(format or recognize(path)).read(path)
