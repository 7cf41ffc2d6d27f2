"""The registry of trace formats. A new format is one file and one line in `TRACE_FORMATS`, or an entry point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.core.registry import Registry
from cotenant.sim.trace import Trace
from cotenant.sim.traces.rows import head


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """How one format of trace files is recognized and read.

    Attributes:
        about: one line of help.
        recognizes: whether a file has this format, from its path and its first `rows.HEAD_CHARS` characters.
        read: reads the file; raises a CotenantError that names the file.
        example: a few rows in this format, one of them not replayable; documentation, and input of the contract test.
        example_name: name of a file of this format.
        is_generic: ask this format last, since files of other formats look like it.
    """

    about: str
    recognizes: Callable[[Path, str], bool]
    read: Callable[[Path], Trace]
    example: str
    example_name: str
    is_generic: bool = False


TRACE_FORMATS: Registry[TraceFormat] = Registry(
    "trace format",
    "cotenant.trace_formats",
    {
        "philly": "cotenant.sim.traces.philly:PHILLY",
        "helios": "cotenant.sim.traces.slurm_logs:HELIOS",
        "acme": "cotenant.sim.traces.slurm_logs:ACME",
        "pai": "cotenant.sim.traces.alibaba:PAI",
        "openb": "cotenant.sim.traces.alibaba:OPENB",
        "carma-table": "cotenant.sim.traces.carma:CARMA_TABLE",
        "rad-script": "cotenant.sim.traces.carma:RAD_SCRIPT",
        "columns": "cotenant.sim.traces.columns:COLUMNS",
    },
)


def recognize(path: Path) -> str:
    """Name of the first format that recognizes the file: built-in ones, then installed ones, then generic ones.

    Raises:
        UsageError: the file cannot be read, or no format recognizes it.
    """
    text = head(path)
    names = sorted(TRACE_FORMATS, key=lambda name: TRACE_FORMATS.get(name).is_generic)  # stable
    for name in names:
        if TRACE_FORMATS.get(name).recognizes(path, text):
            return name
    raise UsageError(
        f"`{path}` has no known trace format (known: {', '.join(TRACE_FORMATS)})",
        hint="name the format with `--trace-format`; a CSV of your own has the columns submit_s, duration_s and n_gpus",
    )
