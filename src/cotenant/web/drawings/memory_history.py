"""Memory in use over time on the GPUs of a job, beside its promise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

from cotenant.core.units import GiB, format_bytes
from cotenant.reporting.axes import Frame, svg, text
from cotenant.reporting.style import tone

WIDTH, HEIGHT = 600, 250
MAX_POINTS = 600
_UNITS = ((180.0, "seconds", 1.0), (3 * 3600.0, "minutes", 60.0), (math.inf, "hours", 3600.0))
"""Longest time, unit of the axis, and its seconds."""
GAP_S = 180.0
"""A line is broken where nothing was read for so long."""


def memory_history(
    gpus: Sequence[Mapping[str, Any]], *, since_s: float, until_s: float | None = None, promised_bytes: int
) -> Markup | None:
    """Lines of the memory in use by all processes, and the promise; None if nothing was read in that time."""
    last_s = math.inf if until_s is None else until_s
    series = [
        (
            gpu["index"],
            [point for point in gpu["points"] if since_s <= point["at_s"] <= last_s and point["max_bytes"] is not None],
        )
        for gpu in gpus
    ]
    series = [(index, points) for index, points in series if points]
    if not series:
        return None
    ends_s = max(points[-1]["at_s"] + points[-1]["seconds"] for _, points in series)
    unit, scale = next((name, seconds) for most_s, name, seconds in _UNITS if ends_s - since_s < most_s)
    top = max(promised_bytes, *(point["max_bytes"] for _, points in series for point in points)) / GiB * 1.12
    frame = Frame((0.0, (ends_s - since_s) / scale), (0.0, top), WIDTH, HEIGHT)
    parts = frame.axes(f"{unit} since the attempt started", "GiB")
    y = frame.y(promised_bytes / GiB)
    parts.append(f'<path class="front" d="M{frame.left:g} {y:.1f}H{frame.right:g}"/>')
    parts.append(text(frame.left + 6, y - 5, f"promised to this job: {format_bytes(promised_bytes)}", tone="value"))
    for place, (index, points) in enumerate(series):
        stride = -(-len(points) // MAX_POINTS)
        groups = [points[i : i + stride] for i in range(0, len(points), stride)]
        chosen = [max(group, key=lambda point: float(point["max_bytes"])) for group in groups]
        path = "".join(_path(frame, chosen, since_s, scale))
        parts.append(f'<path class="line s-{tone(place)}" d="{path}"><title>GPU {escape(str(index))}</title></path>')
        if len(series) > 1:
            parts.append(text(frame.right - 60, frame.top + 14 * (place + 1), f"GPU {index}", tone="label"))
    return Markup(svg(WIDTH, HEIGHT, parts, "Memory in use by all jobs over time, and the promise of this one"))


def _path(frame: Frame, points: Sequence[Mapping[str, Any]], since_s: float, scale: float) -> Iterator[str]:
    last_s = None
    for point in points:
        letter = "L" if last_s is not None and point["at_s"] - last_s < GAP_S else "M"
        last_s = point["at_s"]
        yield f"{letter}{frame.x((last_s - since_s) / scale):.1f} {frame.y(point['max_bytes'] / GiB):.1f}"
