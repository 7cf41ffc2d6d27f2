"""Requests to and answers from the tracing process: files of JSON, columns for the events."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError, TraceError
from cotenant.core.trace import LibraryCall, MemoryEvent, MemoryTrace

SCHEMA = 1
USAGE = "usage"
"""Kind of an error that is a `UsageError` to who asked."""
_INTERNED = ("action", "category", "phase", "module")


def trace_to_dict(trace: MemoryTrace) -> dict[str, Any]:
    """Plain JSON; texts that repeat are stored once."""
    texts: dict[str, int] = {}
    columns: dict[str, list[Any]] = {}
    rows = list(zip(*trace.events, strict=True)) if trace.events else [()] * len(MemoryEvent._fields)
    for name, values in zip(MemoryEvent._fields, rows, strict=True):
        if name in _INTERNED:
            columns[name] = [texts.setdefault(value, len(texts)) for value in values]
        else:
            columns[name] = list(values)
    return {
        "schema": SCHEMA,
        "texts": list(texts),
        "columns": columns,
        "ops": [{"kind": op.kind, "thread": op.thread, "params": dict(op.params)} for op in trace.ops],
        "header": dict(trace.header),
        "warnings": list(trace.warnings),
        "partial": trace.partial,
    }


def trace_from_dict(value: dict[str, Any]) -> MemoryTrace:
    """The trace.

    Raises:
        CotenantError: the file is of another version, or damaged.
    """
    if value.get("schema") != SCHEMA:
        raise CotenantError(
            f"a trace of schema {value.get('schema')!r}, wanted {SCHEMA}", hint="trace the script again"
        )
    texts, columns = value["texts"], value["columns"]
    ready = [
        [texts[index] for index in columns[name]] if name in _INTERNED else columns[name]
        for name in MemoryEvent._fields
    ]
    return MemoryTrace(
        events=tuple(map(MemoryEvent._make, zip(*ready, strict=True))),
        ops=tuple(
            LibraryCall(kind=op["kind"], thread=op["thread"], params=_tuples(op["params"])) for op in value["ops"]
        ),
        header=value["header"],
        warnings=tuple(value["warnings"]),
        partial=value["partial"],
    )


def _tuples(params: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in params.items()}


def output_paths(path: Path) -> tuple[str, str]:
    """The file that `save` writes, and the one it writes first."""
    return str(path), str(path.with_name(f"{path.name}.{os.getpid()}.part"))


def save(path: Path, value: dict[str, Any]) -> None:
    """Write all of it or nothing."""
    scratch = Path(output_paths(path)[1])
    scratch.write_text(json.dumps(value, separators=(",", ":")))
    scratch.replace(path)


def error_to_dict(error: TraceError) -> dict[str, Any]:
    """The error as JSON."""
    return {"kind": error.kind, "message": error.message, "hint": error.hint}
