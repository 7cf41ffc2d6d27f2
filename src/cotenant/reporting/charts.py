"""Charts as SVG text: bars with intervals, points, steps and strips. Sizes are in CSS pixels; colors come from CSS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

CHAR = 7.2  # width of a small letter, to keep labels inside
MIN_LOG = 0.01
MAX_DECADES = 3.5
MAX_LABEL_DISTANCE = 30
"""Pixels from a point to its name; in a crowd, the last ones go by color and tooltip."""


class Bar(NamedTuple):
    """A bar: its name, CSS class, value, its interval if there is one, and another value to be marked beside it."""

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
    """Shares 0..1 over time, in equal steps, of one GPU."""

    name: str
    values: Sequence[float]


def bars(found: Sequence[Bar], *, unit: str, width: int = 340) -> str:
    """Horizontal bars from 0, each with its value; whiskers are intervals, diamonds are marks."""
    sound = [each for each in found if math.isfinite(each.value)]
    row, left, right = 22, 8 + CHAR * max((len(each.name) for each in sound), default=0), 62
    top = max((max(each.value, each.high or 0.0, each.mark or 0.0) for each in sound), default=0.0) or 1.0
    scale = (width - left - right) / top
    parts: list[str] = []
    for place, each in enumerate(sound):
        y, length = place * row + 3, each.value * scale
        title = f"{each.name}: {number(each.value)} {unit}"
        if each.low is not None and each.high is not None:
            title += f", 95 % of bootstraps {number(each.low)} to {number(each.high)}"
        parts.append(f"<g><title>{escape(title)}</title>")
        parts.append(_text(left - 6, y + 12, each.name, anchor="end"))
        parts.append(
            f'<rect class="{each.tone}" x="{left:.1f}" y="{y}" width="{max(1.0, length):.1f}" height="15" rx="2"/>'
        )
        end = length
        if each.low is not None and each.high is not None:
            low, high, middle = left + each.low * scale, left + each.high * scale, y + 7.5
            parts.append(
                f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}'
                f'M{low:.1f} {middle - 3}v6M{high:.1f} {middle - 3}v6"/>'
            )
            end = max(length, each.high * scale)
        if each.mark is not None:
            middle_x = left + each.mark * scale
            parts.append(f'<path class="mark" d="M{middle_x:.1f} {y + 1.5}l6 6-6 6-6-6z"/>')
            end = max(end, each.mark * scale + 6)
        parts.append(_text(left + end + 5, y + 12, number(each.value), tone="value"))
        parts.append("</g>")
    return _svg(width, len(sound) * row + 4, parts)


def scatter(found: Sequence[Point], *, x_label: str, y_label: str, width: int = 560, height: int = 340) -> str:
    """Named points, the ones nothing betters on both axes joined by a line. Less is better on both."""
    frame = _Frame([each.x for each in found], [each.y for each in found], width, height)
    parts = frame.axes(x_label, y_label)
    front = [each for each in found if not any(_betters(other, each) for other in found)]
    front.sort(key=lambda each: (each.x, -each.y))
    steps = "".join(
        f"{'M' if i == 0 else 'L'}{frame.x(each.x):.1f} {frame.y(each.y):.1f}" for i, each in enumerate(front)
    )
    parts.append(f'<path class="front" d="{steps}"/>')
    taken: list[tuple[float, float, float]] = []
    for each in sorted(found, key=lambda point: point.y):
        x, y = frame.x(each.x), frame.y(each.y)
        parts.append(f"<g><title>{escape(each.name)}: {number(each.x)}, {number(each.y)}</title>")
        parts.append(f'<circle class="{each.tone}" cx="{x:.1f}" cy="{y:.1f}" r="5.5"/></g>')
        wide = CHAR * len(each.name)
        anchor, text_x = ("end", x - 9) if x + wide + 14 > width else ("start", x + 9)
        text_y = y + 4
        while any(abs(text_y - other) < 13 and abs(x - at) < max(wide, w) + 12 for at, other, w in taken):
            text_y -= 13
        if y + 4 - text_y > MAX_LABEL_DISTANCE:
            continue
        taken.append((x, text_y, wide))
        parts.append(_text(text_x, text_y, each.name, anchor=anchor))
    return _svg(width, height, parts)


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
    """Lines over one pair of axes, the upright one from 0 to `top`.

    With `log` the other goes by powers of ten, and what is less than `MIN_LOG` is left out.
    """
    xs = [x for each in found for x, _ in each.points]
    if log:
        found = [each._replace(points=[(math.log10(x), y) for x, y in each.points if x >= MIN_LOG]) for each in found]
        xs = [x for each in found for x, _ in each.points]
    frame = _Frame(xs, [0.0, top], width, height, zero=not log, y_top=top, log=log)
    parts = frame.axes(x_label, y_label)
    for each in found:
        path = "".join(
            f"{'M' if i == 0 else 'L'}{frame.x(x):.1f} {frame.y(y):.1f}" for i, (x, y) in enumerate(each.points)
        )
        parts.append(f'<path class="line s-{each.tone}" d="{path}"><title>{escape(each.name)}</title></path>')
    return _svg(width, height, parts)


def strips(found: Sequence[Strip], *, lasted: float, of: float | None = None, unit: str = "h", width: int = 900) -> str:
    """A row for each GPU, darker where more of it is in use; as long as its run lasted, of `of` of the unit."""
    row, left = 17, 8 + CHAR * max((len(each.name) for each in found), default=0)
    full = (width - left - 10) * lasted / (of or lasted)
    parts: list[str] = []
    for place, each in enumerate(found):
        y, wide = place * row, full / max(1, len(each.values))
        parts.append(_text(left - 6, y + 12, each.name, anchor="end"))
        parts.append(f'<rect class="track" x="{left:.1f}" y="{y + 1}" width="{full:.1f}" height="{row - 3}"/>')
        for i, value in enumerate(each.values):
            if value > 0.005:
                x = left + i * wide
                parts.append(
                    f'<rect class="use" x="{x:.1f}" y="{y + 1}" width="{wide + 0.3:.1f}" height="{row - 3}" '
                    f'fill-opacity="{min(1.0, 0.12 + 0.88 * value):.2f}"/>'
                )
    height = len(found) * row + 18
    for moment in _ticks(0.0, of or lasted, 8):
        x = left + (width - left - 10) * moment / (of or lasted)
        parts.append(_text(x, height - 4, f"{number(moment)} {unit}", anchor="middle", tone="tick"))
    return _svg(width, height, parts)


def number(value: float) -> str:
    """A few digits, as people read them."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if value == round(value) and size < 1000:
        return f"{value:.0f}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size < 0.095:
        return f"{value:.1g}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


class _Frame:
    """Axes of a chart: where a value is."""

    def __init__(
        self,
        xs: Sequence[float],
        ys: Sequence[float],
        width: int,
        height: int,
        *,
        zero: bool = False,
        y_top: float | None = None,
        log: bool = False,
    ) -> None:
        self.left, self.right, self.top, self.bottom = 58, width - 16, 12, height - 44
        self.x_from, self.x_to = (min(xs, default=0.0), max(xs, default=1.0)) if log else _range(xs, zero=zero)
        self.x_to = max(self.x_to, self.x_from + 1e-6)
        self.y_from, self.y_to = _range(ys, zero=False) if y_top is None else (0.0, y_top)
        self._log = log

    def x(self, value: float) -> float:
        """Pixels from the left."""
        return self.left + (value - self.x_from) / (self.x_to - self.x_from) * (self.right - self.left)

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return self.bottom - (value - self.y_from) / (self.y_to - self.y_from) * (self.bottom - self.top)

    def axes(self, x_label: str, y_label: str) -> list[str]:
        """Grid, ticks and labels."""
        parts = []
        for value in _log_ticks(self.x_from, self.x_to) if self._log else _ticks(self.x_from, self.x_to, 6):
            x = self.x(value)
            parts.append(f'<path class="grid" d="M{x:.1f} {self.top}V{self.bottom}"/>')
            text = number(round(10.0**value, 10) if self._log else value)
            parts.append(_text(x, self.bottom + 15, text, anchor="middle", tone="tick"))
        for value in _ticks(self.y_from, self.y_to, 6):
            y = self.y(value)
            parts.append(f'<path class="grid" d="M{self.left} {y:.1f}H{self.right}"/>')
            parts.append(_text(self.left - 6, y + 4, number(value), anchor="end", tone="tick"))
        middle = (self.top + self.bottom) / 2
        parts.append(_text((self.left + self.right) / 2, self.bottom + 34, x_label, anchor="middle", tone="axis"))
        label = _text(0, 0, y_label, anchor="middle", tone="axis")
        parts.append(f'<g transform="translate(13 {middle}) rotate(-90)">{label}</g>')
        return parts


def _range(values: Sequence[float], *, zero: bool) -> tuple[float, float]:
    sound = [each for each in values if math.isfinite(each)] or [0.0, 1.0]
    low, high = (0.0 if zero else min(sound)), max(sound)
    room = 0.0 if zero else 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room if high + room > low - room else low + 1.0


def _ticks(low: float, high: float, most: int) -> list[float]:
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, first + most + 2) if i * step <= high + 1e-9 * step]


def _log_ticks(low: float, high: float) -> list[float]:
    """Logarithms of powers of ten, and of 2 and 5 times these where there are few."""
    parts = (1, 2, 5) if high - low < MAX_DECADES else (1,)
    found = [power + math.log10(part) for power in range(math.floor(low), math.ceil(high) + 1) for part in parts]
    return [each for each in found if low - 1e-9 <= each <= high + 1e-9]


def _betters(other: Point, one: Point) -> bool:
    return other.x <= one.x and other.y <= one.y and (other.x < one.x or other.y < one.y)


def _text(x: float, y: float, text: str, *, anchor: str = "start", tone: str = "label") -> str:
    return f'<text class="{tone}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">{body}</svg>'
