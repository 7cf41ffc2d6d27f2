"""The memory of a GPU, or of a job, as one horizontal bar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, NamedTuple

from markupsafe import Markup

from cotenant.core.text import encodable
from cotenant.core.units import format_bytes
from cotenant.reporting.style import tone

WIDTH = 1000
HEIGHT = 16


class Part(NamedTuple):
    """A part of a bar. `css`: class of its color; `title`: its tooltip."""

    css: str
    size_bytes: float
    title: str


def gpu_bar(gpu: Mapping[str, Any]) -> Markup:
    """Each resident's promise, filled as far as its memory was seen; then foreign processes; the rest is free."""
    parts: list[Part] = []
    for resident in gpu["residents"]:
        promised, seen = resident["promised_bytes"], resident["observed_bytes"] or 0
        who = "another user's job" if resident["job_id"] is None else f"job {resident['job_id']}"
        title = f"{who}: {format_bytes(seen)} used of {format_bytes(promised)} promised"
        color = tone(resident["job_id"] or 0)
        parts.append(Part(f"seen {color}", min(seen, promised), title))
        if seen > promised:
            parts.append(Part("over", seen - promised, f"{title}: more than its promise"))
        else:
            parts.append(Part(f"promise {color}", promised - seen, title))
    foreign = gpu["foreign_bytes"]
    if foreign:
        parts.append(Part("foreign", foreign, f"processes of no job: {format_bytes(foreign)}"))
    total = gpu["memory_total_bytes"]
    used = "unknown" if gpu["used_bytes"] is None else format_bytes(gpu["used_bytes"])
    label = f"{used} of {format_bytes(total)} in use, {format_bytes(gpu['promised_bytes'])} promised"
    return bar(parts, total, label)


def bar(parts: Iterable[Part], total_bytes: float, label: str) -> Markup:
    """The parts side by side on a track of `total_bytes`; beyond it, all are scaled down."""
    drawn = [part for part in parts if part.size_bytes > 0]
    scale = WIDTH / max(1.0, total_bytes, sum(part.size_bytes for part in drawn))
    lines = []
    x = 0.0
    for part in drawn:
        width = max(1.5, part.size_bytes * scale)
        title = escape(encodable(part.title))
        lines.append(
            f'<rect class="{part.css}" x="{x:.1f}" width="{width:.1f}" height="{HEIGHT}"><title>{title}</title></rect>'
        )
        x += part.size_bytes * scale
    return Markup(
        f'<svg class="bar" viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(encodable(label))}"><rect class="track" width="{WIDTH}" height="{HEIGHT}"/>'
        f"{''.join(lines)}</svg>"
    )
