"""Compacts the allocator's history. A file of its own, standard library only: the probe loads it by path."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

ADDRESS_UNIT_BYTES = 512  # blocks of the allocator are aligned to this


def compact_history(entries: list[dict[str, Any]], marks: list[tuple[str, float]]) -> dict[str, Any]:
    """Columns of the events; the source line of an allocation, innermost outside of torch, is stored once.

    Sizes are requested bytes, except in segments; addresses count blocks of 512 bytes from `address_base`; times are
    microseconds as torch gives them.
    """
    texts: dict[str, int] = {"": 0}
    base = min((int(entry["addr"]) for entry in entries if entry.get("addr")), default=0)
    rows = []
    for entry in entries:
        line = texts.setdefault(source_line(entry.get("frames") or ()), len(texts))
        rows.append(
            (
                texts.setdefault(str(entry["action"]), len(texts)),
                max(0, int(entry.get("addr", 0)) - base) // ADDRESS_UNIT_BYTES,
                int(entry.get("size", 0)),
                int(entry.get("stream", 0)),
                int(entry.get("time_us", 0)),
                line,
            )
        )
    names = ("action", "address", "size", "stream", "time_us", "line")
    columns = list(zip(*rows, strict=True)) or [() for _ in names]
    return {
        "texts": list(texts),
        "address_base": base,
        "columns": {name: list(column) for name, column in zip(names, columns, strict=True)},
        "marks": [[phase, round(at_s * 1e6)] for phase, at_s in marks],
    }


def source_line(frames: Any) -> str:
    """`file.py:12 name` of the innermost frame that is not torch's own, or of the innermost of all."""
    chosen: Mapping[str, Any] | None = None
    for frame in frames:
        chosen = chosen or frame
        path = str(frame.get("filename", ""))
        if "-packages/torch/" not in path and not path.startswith("<") and not path.endswith("/probe.py"):
            chosen = frame
            break
    if chosen is None:
        return ""
    return f"{pathlib.PurePath(str(chosen['filename'])).name}:{chosen['line']} {chosen['name']}"
