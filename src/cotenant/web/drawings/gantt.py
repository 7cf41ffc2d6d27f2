"""Attempts as bars on GPUs over time, and moves between GPUs as arrows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import NamedTuple

from markupsafe import Markup

from cotenant.core.text import encodable
from cotenant.reporting.style import tone

LANE, GAP, LEFT, TOP = 16, 6, 92, 22
MOVED = "moved"
"""`GanttBar.end` of a run that was stopped so that its job goes on elsewhere."""
MAX_LANES = 12
"""Jobs drawn side by side on one GPU; further ones share the last lane."""
TICKS_S = (60, 300, 600, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, 86400)


class GanttBar(NamedTuple):
    """An attempt on a GPU, between two moments in seconds since 1970. `end`: how it ended, for its color."""

    gpu_uuid: str
    job_id: int
    text: str
    begin_s: float
    end_s: float
    end: str


class Gantt(NamedTuple):
    """Two drawings of one height: the names of the GPUs, and the bars, which are wider than a window."""

    names: Markup
    bars: Markup


class Mark(NamedTuple):
    """A moment to mark: `css` names its color."""

    at_s: float
    css: str
    title: str


def gantt(
    gpus: Mapping[str, str], bars: Sequence[GanttBar], marks: Sequence[Mark], begin_s: float, end_s: float, width: int
) -> Gantt:
    """The bars of each of `gpus` (labels by UUID) below each other, in as many lanes as overlap; links to the jobs."""
    scale = (width - LEFT - 10) / max(1.0, end_s - begin_s)
    parts: list[str] = []
    names: list[str] = []
    corners: list[_Corners] = []
    y = TOP
    by_gpu: dict[str, list[GanttBar]] = {uuid: [] for uuid in gpus}
    for bar in bars:
        by_gpu.setdefault(bar.gpu_uuid, []).append(bar)
    for uuid, found in by_gpu.items():
        lanes = _lanes(found)
        count = max(1, len({lane for _, lane in lanes}))
        height = count * LANE
        names.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(gpus.get(uuid, uuid[:11]))}</text>')
        parts.append(f'<rect class="track" x="{LEFT}" y="{y}" width="{width - LEFT - 10}" height="{height}"/>')
        for bar, lane in lanes:
            x = LEFT + (max(bar.begin_s, begin_s) - begin_s) * scale
            wide = max(2.0, (min(bar.end_s, end_s) - max(bar.begin_s, begin_s)) * scale)
            corners.append(_Corners(bar, x, x + wide, y + lane * LANE + LANE / 2))
            title = escape(encodable(f"{bar.text}: {bar.end}"))
            label = encodable(bar.text) if wide > 60 else ""
            clipped = escape(label[: int((wide - 8) / 6.6)]) if label else ""
            word = (
                f'<text class="bright" x="{x + 4:.1f}" y="{y + lane * LANE + 12}">{clipped}</text>' if clipped else ""
            )
            parts.append(
                f'<a href="/jobs/{bar.job_id}"><rect class="run {tone(bar.job_id)} {bar.end}" x="{x:.1f}" '
                f'y="{y + lane * LANE + 1}" width="{wide:.1f}" height="{LANE - 2}"><title>{title}</title></rect>'
                f"{word}</a>"
            )
        y += height + GAP
    parts += _arrows(corners)
    for mark in marks:
        x = LEFT + (mark.at_s - begin_s) * scale
        parts.append(
            f'<path class="{mark.css}" d="M{x:.1f} {TOP}V{y}"><title>{escape(encodable(mark.title))}</title></path>'
        )
    ticks = "".join(
        f'<path class="grid" d="M{x:.1f} {TOP - 4}V{y}"/>'
        f'<text class="tick" x="{x:.1f}" y="12" text-anchor="middle">{text}</text>'
        for x, text in _ticks(begin_s, end_s, scale, width)
    )
    return Gantt(
        Markup(
            f'<svg class="gantt" viewBox="0 0 {LEFT} {y}" width="{LEFT}" height="{y}" role="group" '
            f'aria-label="GPUs">{"".join(names)}</svg>'
        ),
        Markup(
            f'<svg class="gantt" viewBox="{LEFT} 0 {width - LEFT} {y}" width="{width - LEFT}" height="{y}" '
            f'role="group" aria-label="Jobs on GPUs over time">{ticks}{"".join(parts)}</svg>'
        ),
    )


class _Corners(NamedTuple):
    """Where a bar begins and ends, and the middle of its height."""

    bar: GanttBar
    left: float
    right: float
    y: float


def _arrows(corners: Sequence[_Corners]) -> list[str]:
    """From the end of each run that was moved to where its job goes on, if that is in the drawing."""
    by_job: dict[int, list[_Corners]] = {}
    for found in sorted(corners, key=lambda found: found.bar.begin_s):
        by_job.setdefault(found.bar.job_id, []).append(found)
    arrows = []
    for job_id, runs in by_job.items():
        for before, after in itertools.pairwise(runs):
            if before.bar.end != MOVED or after.bar.begin_s < before.bar.end_s:
                continue
            title = escape(encodable(f"{before.bar.text}: moved"))
            arrows.append(
                f'<a href="/jobs/{job_id}"><path class="move" d="M{before.right:.1f} {before.y:.1f}'
                f'L{after.left:.1f} {after.y:.1f}m-5 -3l5 3l-5 3"><title>{title}</title></path></a>'
            )
    return arrows


def _lanes(bars: Sequence[GanttBar]) -> list[tuple[GanttBar, int]]:
    """The first lane that is free for each bar, by begin."""
    ends: list[float] = []
    placed = []
    for bar in sorted(bars, key=lambda bar: (bar.begin_s, bar.job_id)):
        lane = next((i for i, free_s in enumerate(ends) if free_s <= bar.begin_s), len(ends))
        lane = min(lane, MAX_LANES - 1)
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = max(ends[lane], bar.end_s)
        placed.append((bar, lane))
    return placed


def _ticks(begin_s: float, end_s: float, scale: float, width: int) -> list[tuple[float, str]]:
    step_s = next((step for step in TICKS_S if (end_s - begin_s) / step * 70 <= width), TICKS_S[-1])
    first = int(begin_s // step_s + 1) * step_s
    pattern = "%m-%d" if step_s >= 86400 else "%H:%M"
    return [
        (LEFT + (at_s - begin_s) * scale, datetime.fromtimestamp(at_s, tz=timezone.utc).strftime(pattern))
        for at_s in range(first, int(end_s) + 1, step_s)
    ]
