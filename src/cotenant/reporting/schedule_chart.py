"""A chart of runs as bars, a row for each GPU, with arrows from where a run ends to where its job goes on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from cotenant.reporting.axes import number, svg, text, text_width, ticks
from cotenant.reporting.style import tone

LANE, GAP = 12, 5


class ScheduledRun(NamedTuple):
    """A run in a row, between two times in the unit of the axis. `goes_on`: its job continues with its next run."""

    row: int
    job: int
    begin: float
    end: float
    goes_on: bool


class _Placed(NamedTuple):
    """A run, and where its bar is."""

    run: ScheduledRun
    left: float
    right: float
    y: float


def schedule(runs: Sequence[ScheduledRun], rows: Sequence[str], *, axis_end: float, unit: str, width: int = 900) -> str:
    """The runs of each row below each other, in as many lanes as overlap; arrows for those that go on elsewhere."""
    left = 8 + text_width(rows)
    scale = (width - left - 10) / axis_end
    y = 2.0
    parts: list[str] = []
    placed: list[_Placed] = []
    for row, name in enumerate(rows):
        here = sorted((run for run in runs if run.row == row), key=lambda run: (run.begin, run.job))
        lanes = assign_lanes([(run.begin, run.end) for run in here])
        height = LANE * (1 + max(lanes, default=0))
        parts.append(text(left - 6, y + height / 2 + 4, name, anchor="end"))
        parts.append(
            f'<rect class="track" x="{left:.1f}" y="{y:.1f}" width="{axis_end * scale:.1f}" height="{height}"/>'
        )
        placed += [
            _Placed(run, left + run.begin * scale, left + run.end * scale, y + lane * LANE)
            for run, lane in zip(here, lanes, strict=True)
        ]
        y += height + GAP
    for run, begin, end, top in placed:
        parts.append(
            f'<rect class="{tone(run.job)}" x="{begin:.1f}" y="{top + 1:.1f}" width="{max(1.0, end - begin):.1f}" '
            f'height="{LANE - 2}" rx="2"><title>{escape(f"job {run.job}")}</title></rect>'
        )
    parts += _arrows(placed)
    for moment in ticks(0.0, axis_end, 8):
        parts.append(text(left + moment * scale, y + 12, f"{number(moment)} {unit}", anchor="middle", tone="tick"))
    return svg(width, y + 18, parts)


def assign_lanes(spans: Sequence[tuple[float, float]]) -> list[int]:
    """The first lane that is free for each span (begin, end), in the order of their begins."""
    ends: list[float] = []
    lanes = []
    for begin, end in spans:
        lane = next((i for i, free in enumerate(ends) if free <= begin), len(ends))
        ends[lane:] = [end, *ends[lane + 1 :]]
        lanes.append(lane)
    return lanes


def _arrows(placed: Sequence[_Placed]) -> list[str]:
    """From the end of each run that goes on to the begin of the next run of its job."""
    by_job: dict[int, list[_Placed]] = {}
    for found in sorted(placed, key=lambda found: found.run.begin):
        by_job.setdefault(found.run.job, []).append(found)
    middle = LANE / 2
    return [
        f'<path class="move" d="M{before.right:.1f} {before.y + middle:.1f}L{after.left:.1f} {after.y + middle:.1f}'
        f'm-5 -3l5 3l-5 3"><title>{escape(f"job {before.run.job}: moved")}</title></path>'
        for found in by_job.values()
        for before, after in itertools.pairwise(found)
        if before.run.goes_on and after.run.begin >= before.run.end
    ]
