"""Charts as SVG: bars with intervals, a Pareto front, lines over time, and strips of one value per GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from cotenant.reporting.axes import CHAR_WIDTH, Frame, from_zero, log_ends, number, padded, svg, text, text_width, ticks

MIN_LOG = 0.01
"""Smallest value on a logarithmic time axis; smaller ones are left out."""

MAX_LABEL_DISTANCE = 30
"""Pixels from a point to its label. A label that finds no room nearer is left out; tooltip and color remain."""

LABEL_HEIGHT = 13


class Bar(NamedTuple):
    """A horizontal bar.

    Attributes:
        tone: CSS class of its color.
        low, high: ends of its whisker; `mark`: a second value, drawn as a diamond.
    """

    name: str
    tone: str
    value: float
    low: float | None = None
    high: float | None = None
    mark: float | None = None


class Point(NamedTuple):
    """A point with a name."""

    name: str
    tone: str
    x: float
    y: float


class Line(NamedTuple):
    """A line through points; x ascending."""

    name: str
    tone: str
    points: Sequence[tuple[float, float]]


class Strip(NamedTuple):
    """Ratios 0..1 over time in equal steps."""

    name: str
    values: Sequence[float]


def bars(found: Sequence[Bar], *, unit: str, width: int = 340, whisker: str = "95 % of bootstraps") -> str:
    """Horizontal bars from 0, each with its value; bars that are not finite are left out.

    `whisker` says in the tooltips what whiskers are.
    """
    drawn = [bar for bar in found if math.isfinite(bar.value)]
    row, left, right = 22, 8 + text_width([bar.name for bar in drawn]), 62
    top = max((max(bar.value, bar.high or 0.0, bar.mark or 0.0) for bar in drawn), default=0.0) or 1.0
    scale = (width - left - right) / top
    parts: list[str] = []
    for index, bar in enumerate(drawn):
        y, length = index * row + 3, bar.value * scale
        title = f"{bar.name}: {number(bar.value)} {unit}".rstrip()
        if bar.low is not None and bar.high is not None:
            title += f", {whisker} {number(bar.low)} to {number(bar.high)}"
        parts.append(f"<g><title>{escape(title)}</title>")
        parts.append(text(left - 6, y + 12, bar.name, anchor="end"))
        parts.append(
            f'<rect class="{bar.tone}" x="{left:.1f}" y="{y}" width="{max(1.0, length):.1f}" height="15" rx="2"/>'
        )
        end = length
        if bar.low is not None and bar.high is not None:
            low, high, middle = left + bar.low * scale, left + bar.high * scale, y + 7.5
            parts.append(
                f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}'
                f'M{low:.1f} {middle - 3}v6M{high:.1f} {middle - 3}v6"/>'
            )
            end = max(length, bar.high * scale)
        if bar.mark is not None:
            mark_x = left + bar.mark * scale
            parts.append(f'<path class="mark" d="M{mark_x:.1f} {y + 1.5}l6 6-6 6-6-6z"/>')
            end = max(end, bar.mark * scale + 6)
        parts.append(text(left + end + 5, y + 12, number(bar.value), tone="value"))
        parts.append("</g>")
    return svg(width, len(drawn) * row + 4, parts)


def pareto(found: Sequence[Point], *, x_label: str, y_label: str, width: int = 560, height: int = 340) -> str:
    """Named points of which less is better on both axes; a line joins those that no other point beats on both."""
    frame = Frame(padded([point.x for point in found]), padded([point.y for point in found]), width, height)
    parts = frame.axes(x_label, y_label)
    front = [point for point in found if not any(_dominates(other, point) for other in found)]
    front.sort(key=lambda point: (point.x, -point.y))
    parts.append(f'<path class="front" d="{_path([(frame.x(point.x), frame.y(point.y)) for point in front])}"/>')
    labels: list[tuple[float, float, float]] = []  # left, right and baseline of those drawn
    for point in sorted(found, key=lambda point: point.y):
        x, y = frame.x(point.x), frame.y(point.y)
        parts.append(f"<g><title>{escape(point.name)}: {number(point.x)}, {number(point.y)}</title>")
        parts.append(f'<circle class="{point.tone}" cx="{x:.1f}" cy="{y:.1f}" r="5.5"/></g>')
        wide = CHAR_WIDTH * len(point.name)
        to_the_left = x + wide + 14 > width
        left = x - 9 - wide if to_the_left else x + 9
        baseline = y + 4
        while any(
            abs(baseline - other) < LABEL_HEIGHT and left < end and begin < left + wide for begin, end, other in labels
        ):
            baseline -= LABEL_HEIGHT
        if y + 4 - baseline > MAX_LABEL_DISTANCE:
            continue
        labels.append((left, left + wide, baseline))
        anchor, label_x = ("end", x - 9) if to_the_left else ("start", x + 9)
        parts.append(text(label_x, baseline, point.name, anchor=anchor))
    return svg(width, height, parts)


def lines(
    found: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    width: int = 560,
    height: int = 340,
    top: float = 1.0,
    log: bool = False,
) -> str:
    """Lines over one pair of axes, y from 0 to `top`; with `log` x is logarithmic, from `MIN_LOG` on."""
    if log:
        found = [line._replace(points=[(x, y) for x, y in line.points if x >= MIN_LOG]) for line in found]
    xs = [x for line in found for x, _ in line.points]
    frame = Frame(log_ends(xs) if log else from_zero(xs), (0.0, top), width, height, x_log=log)
    parts = frame.axes(x_label, y_label)
    for line in found:
        path = _path([(frame.x(x), frame.y(y)) for x, y in line.points])
        parts.append(f'<path class="line s-{line.tone}" d="{path}"><title>{escape(line.name)}</title></path>')
    return svg(width, height, parts)


def strips(
    found: Sequence[Strip], *, duration: float, axis_end: float | None = None, unit: str = "h", width: int = 900
) -> str:
    """A row for each strip, darker for larger values.

    The rows span `duration` of an axis that ends at `axis_end`, both in `unit`.
    """
    axis_end = axis_end or duration
    row, left = 17, 8 + text_width([strip.name for strip in found])
    room = width - left - 10
    full = room * duration / axis_end
    parts: list[str] = []
    for index, strip in enumerate(found):
        y, wide = index * row, full / max(1, len(strip.values))
        parts.append(text(left - 6, y + 12, strip.name, anchor="end"))
        parts.append(f'<rect class="track" x="{left:.1f}" y="{y + 1}" width="{full:.1f}" height="{row - 3}"/>')
        for step, value in enumerate(strip.values):
            if value > 0.005:
                parts.append(
                    f'<rect class="use" x="{left + step * wide:.1f}" y="{y + 1}" width="{wide + 0.3:.1f}" '
                    f'height="{row - 3}" fill-opacity="{min(1.0, 0.12 + 0.88 * value):.2f}"/>'
                )
    height = len(found) * row + 18
    for moment in ticks(0.0, axis_end, 8):
        x = left + room * moment / axis_end
        parts.append(text(x, height - 4, f"{number(moment)} {unit}", anchor="middle", tone="tick"))
    return svg(width, height, parts)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))


def _dominates(other: Point, point: Point) -> bool:
    return other.x <= point.x and other.y <= point.y and (other.x < point.x or other.y < point.y)
