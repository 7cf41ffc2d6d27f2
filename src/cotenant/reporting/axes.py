"""Axes of an SVG chart: the scale of each, its grid, ticks and labels. Sizes are CSS pixels; colors come from CSS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

CHAR_WIDTH = 7.2
"""Pixels of a small letter, to keep labels inside."""

MIN_TICK_PIXELS = 46.0
"""A logarithmic axis has ticks at powers of ten only where 1, 2 and 5 would come closer on average."""


class Axis:
    """A scale from values to pixels.

    Attributes:
        low, high: ends of the axis; with `log` they are logarithms to base 10.
    """

    def __init__(self, low: float, high: float, *, first: float, last: float, log: bool = False) -> None:
        self.low, self.high = low, max(high, low + 1e-6)
        self._first, self._last = first, last
        self.log = log

    def at(self, value: float) -> float:
        """Pixels of a value."""
        if self.log:
            value = math.log10(value)
        return self._first + (value - self.low) / (self.high - self.low) * (self._last - self._first)

    def ticks(self) -> list[tuple[float, str]]:
        """Pixels and text of each tick."""
        values = (
            log_ticks(self.low, self.high, abs(self._last - self._first)) if self.log else ticks(self.low, self.high, 6)
        )
        return [(self.at(value), short(value)) for value in values]


class Frame:
    """The rectangle of a chart between its axes."""

    def __init__(
        self,
        x_ends: tuple[float, float],
        y_ends: tuple[float, float],
        width: float,
        height: float,
        *,
        x_log: bool = False,
        y_log: bool = False,
    ) -> None:
        self.left, self.right, self.top, self.bottom = 58.0, width - 16.0, 12.0, height - 44.0
        self.x_axis = Axis(*x_ends, first=self.left, last=self.right, log=x_log)
        self.y_axis = Axis(*y_ends, first=self.bottom, last=self.top, log=y_log)
        self.x, self.y = self.x_axis.at, self.y_axis.at

    def axes(self, x_label: str, y_label: str, *, x_ticks: bool = True, y_ticks: bool = True) -> list[str]:
        """Grid, ticks and labels of both axes."""
        parts = []
        for x, tick in self.x_axis.ticks() if x_ticks else ():
            parts.append(f'<path class="grid" d="M{x:.1f} {self.top:g}V{self.bottom:g}"/>')
            parts.append(text(x, self.bottom + 15, tick, anchor="middle", tone="tick"))
        for y, tick in self.y_axis.ticks() if y_ticks else ():
            parts.append(f'<path class="grid" d="M{self.left:g} {y:.1f}H{self.right:g}"/>')
            parts.append(text(self.left - 6, y + 4, tick, anchor="end", tone="tick"))
        middle = (self.top + self.bottom) / 2
        parts.append(text((self.left + self.right) / 2, self.bottom + 34, x_label, anchor="middle", tone="axis"))
        label = text(0, 0, y_label, anchor="middle", tone="axis")
        parts.append(f'<g transform="translate(13 {middle:g}) rotate(-90)">{label}</g>')
        return parts


def padded(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis that shows all finite values with 8 % of room on both sides."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return low - room, high + room


def from_zero(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis from 0 to the largest finite value."""
    return 0.0, max((value for value in values if math.isfinite(value)), default=1.0) or 1.0


def log_ends(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis, as logarithms, from the smallest to the largest positive value."""
    logs = [math.log10(value) for value in values if value > 0 and math.isfinite(value)] or [0.0, 1.0]
    return min(logs), max(logs)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round values from `low` to `high`."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, first + count + 2) if i * step <= high + 1e-9 * step]


def log_ticks(low: float, high: float, pixels: float) -> list[float]:
    """Powers of ten between two logarithms, with 2 and 5 times these where the axis has room for them."""
    factors = (1, 2, 5) if 3 * (high - low) * MIN_TICK_PIXELS < pixels else (1,)
    powers = range(math.floor(low), math.ceil(high) + 1)
    found = [(power + math.log10(factor), factor * 10.0**power) for power in powers for factor in factors]
    return [round(value, 10) for log, value in found if low - 1e-9 <= log <= high + 1e-9]


def number(value: float) -> str:
    """`value` with two or three significant digits; `-` if it is not finite."""
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


def short(value: float) -> str:
    """`value` for a tick: as `number`, with k, M or G from 10,000 on."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(10_000.0, factor):
            return f"{value / factor:g}{suffix}"
    return number(value)


def text(x: float, y: float, content: str, *, anchor: str = "start", tone: str = "label") -> str:
    """A `<text>` element."""
    return f'<text class="{tone}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(content)}</text>'


def text_width(names: Sequence[str]) -> float:
    """Pixels of the longest of `names`."""
    return CHAR_WIDTH * max((len(name) for name in names), default=0)


def svg(width: float, height: float, parts: Sequence[str], label: str = "Chart") -> str:
    """The parts as one `<svg>` element; `label` names it for those who do not see it."""
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
