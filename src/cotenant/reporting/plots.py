"""Plots of data sets as SVG: histograms, box plots, heat maps and dots. Values are any iterables of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from cotenant.core.stats import quantile
from cotenant.reporting.axes import Frame, log_ends, number, padded, svg, text, text_width

HISTOGRAM_BINS = 40
MAX_DOTS = 4000
"""Dots of one plot; of more, evenly spaced ones are drawn."""


class Dots(NamedTuple):
    """Dots of one color; `joined` adds a line through them."""

    name: str
    tone: str
    points: Sequence[tuple[float, float]]
    joined: bool = False


class Bin(NamedTuple):
    """A bar of a histogram, from `low` to `high`."""

    low: float
    high: float
    size: float


class Box(NamedTuple):
    """Quartiles of a group, and whiskers at its most distant values within 1.5 times their distance (Tukey)."""

    low: float
    first: float
    median: float
    third: float
    high: float


def histogram(bins: Sequence[Bin], *, x_label: str, width: int = 300, height: int = 200, log: bool = False) -> str:
    """Bars over a number axis, logarithmic with `log`."""
    edges = [edge for one in bins for edge in (one.low, one.high)]
    ends = log_ends(edges) if log else (min(edges, default=0.0), max(edges, default=1.0))
    top = max((one.size for one in bins), default=0.0) or 1.0
    frame = Frame(ends, (0.0, 1.05 * top), width, height, x_log=log)
    parts = frame.axes(x_label, "")
    for one in bins:
        x, end, y = frame.x(one.low), frame.x(one.high), frame.y(one.size)
        title = f"{number(one.low)} to {number(one.high)}: {number(one.size)}"
        parts.append(
            f'<rect class="t0" x="{x:.1f}" y="{y:.1f}" width="{max(0.5, end - x - 0.4):.1f}" '
            f'height="{frame.bottom - y:.1f}"><title>{title}</title></rect>'
        )
    return svg(width, height, parts)


def bins_of(values: Iterable[float], *, log: bool = False, count: int = HISTOGRAM_BINS) -> list[Bin]:
    """Equal bins of `values`, of equal ratio with `log`; bins of whole numbers hold equally many of them.

    Otherwise an even draw of whole numbers would look like a comb.
    """
    finite = sorted(float(value) for value in values if math.isfinite(value))
    if not finite:
        return []
    low, high = finite[0], finite[-1]
    if log:
        ratio = (high / low) ** (1 / count) if high > low else 2.0
        edges = [low * ratio**i for i in range(count + 1)]
    elif all(value == round(value) for value in finite):
        whole = math.ceil((high - low + 1) / count)
        edges = [low - 0.5 + whole * i for i in range(math.ceil((high - low + 1) / whole) + 1)]
    else:
        step = (high - low) / count or 1.0
        edges = [low + step * i for i in range(count + 1)]
    counts = [0] * (len(edges) - 1)
    place = 0
    for value in finite:
        while place < len(counts) - 1 and value >= edges[place + 1]:
            place += 1
        counts[place] += 1
    return [Bin(edges[i], edges[i + 1], counts[i]) for i in range(len(counts))]


def boxes(groups: Sequence[tuple[str, Sequence[float]]], *, label: str, width: int = 900, height: int = 320) -> str:
    """A box plot of each group, as (name, values); empty groups are left out."""
    found = [(name, box_of(values)) for name, values in groups if len(values)]
    ends = [end for _, box in found for end in (box.low, box.high)]
    frame = Frame((0.0, float(max(1, len(found)))), padded(ends), width, height)
    parts = frame.axes("", label, x_ticks=False)
    for index, (name, box) in enumerate(found):
        middle, half = frame.x(index + 0.5), 0.3 * (frame.x(1.0) - frame.x(0.0))
        low, first, median, third, high = (frame.y(value) for value in box)
        title = f"{name}: median {number(box.median)}, quartiles {number(box.first)} to {number(box.third)}"
        parts.append(
            f"<g><title>{escape(title)}</title>"
            f'<path class="whisker" d="M{middle:.1f} {low:.1f}V{first:.1f}M{middle:.1f} {third:.1f}V{high:.1f}"/>'
            f'<rect class="box" x="{middle - half:.1f}" y="{third:.1f}" width="{2 * half:.1f}" '
            f'height="{max(0.5, first - third):.1f}"/>'
            f'<path class="whisker" d="M{middle - half:.1f} {median:.1f}H{middle + half:.1f}"/></g>'
        )
        parts.append(text(middle, frame.bottom + 15, name, anchor="middle", tone="tick"))
    return svg(width, height, parts)


def box_of(values: Sequence[float]) -> Box:
    """The box of a group that is not empty."""
    ordered = sorted(float(value) for value in values)
    first, median, third = (quantile(ordered, share) for share in (0.25, 0.5, 0.75))
    reach = 1.5 * (third - first)
    inside = [value for value in ordered if first - reach <= value <= third + reach]
    return Box(min(inside), first, median, third, max(inside))


def heatmap(
    rows: Sequence[Sequence[float]],
    *,
    row_names: Sequence[str],
    column_names: Sequence[str],
    labels: Sequence[Sequence[str]] | None = None,
    low: float = 0.0,
    cell: int = 26,
) -> str:
    """Cells from white (`low`, or 0 where `low` is negative) to a full color (1); negative values are red.

    `labels` are written into the cells; without them a tooltip has the value.
    """
    left = 10 + text_width(row_names)
    top = 6.0
    height = top + cell * len(rows) + 10 + text_width(column_names)
    width = left + cell * len(column_names) + 10
    parts: list[str] = []
    for r, values in enumerate(rows):
        y = top + r * cell
        parts.append(text(left - 6, y + cell / 2 + 4, row_names[r], anchor="end", tone="tick"))
        for c, value in enumerate(values):
            x = left + c * cell
            strength = min(1.0, abs(value)) if low < 0 else max(0.0, min(1.0, (value - low) / (1.0 - low)))
            title = f"{row_names[r]}, {column_names[c]}: {number(value)}"
            parts.append(
                f'<g><title>{escape(title)}</title><rect class="track" x="{x:.1f}" y="{y:.1f}" width="{cell}" '
                f'height="{cell}"/><rect class="{"against" if value < 0 else "use"}" x="{x:.1f}" y="{y:.1f}" '
                f'width="{cell}" height="{cell}" fill-opacity="{strength:.2f}"/></g>'
            )
            if labels is not None and labels[r][c]:
                tone = "bright" if strength > 0.5 else "value"
                parts.append(text(x + cell / 2, y + cell / 2 + 4, labels[r][c], anchor="middle", tone=tone))
    for c, name in enumerate(column_names):
        x, y = left + (c + 0.5) * cell + 4, top + len(rows) * cell + 8
        label = text(0, 0, name, anchor="end", tone="tick")
        parts.append(f'<g transform="translate({x:.1f} {y:.1f}) rotate(-90)">{label}</g>')
    return svg(width, height, parts)


def dots(
    groups: Sequence[Dots],
    *,
    x_label: str,
    y_label: str,
    width: int = 420,
    height: int = 320,
    x_log: bool = False,
    diagonal: bool = False,
    ticks: bool = True,
) -> str:
    """Dots of each group; `diagonal` adds the line on which y equals x, without `ticks` both axes are bare."""
    shown = [group._replace(points=_drawable(group.points, x_log, len(groups))) for group in groups]
    xs = [x for group in shown for x, _ in group.points]
    ys = [y for group in shown for _, y in group.points]
    frame = Frame(log_ends(xs) if x_log else padded(xs), padded(ys), width, height, x_log=x_log)
    parts = frame.axes(x_label, y_label, x_ticks=ticks, y_ticks=ticks)
    if diagonal and xs and ys:
        low, high = max(min(xs), min(ys)), min(max(xs), max(ys))
        if high > low:
            begin, end = (f"{frame.x(value):.1f} {frame.y(value):.1f}" for value in (low, high))
            parts.append(f'<path class="front" d="M{begin}L{end}"/>')
    for group in shown:
        places = [(frame.x(x), frame.y(y)) for x, y in group.points]
        title = f"<title>{escape(group.name)}</title>"
        if group.joined:
            path = "".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(places))
            parts.append(f'<path class="line s-{group.tone}" d="{path}">{title}</path>')
        else:
            path = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)
            size = "small" if len(xs) > 1000 else "large"
            parts.append(f'<path class="dots {size} s-{group.tone}" d="{path}">{title}</path>')
    return svg(width, height, parts)


def _drawable(points: Sequence[tuple[float, float]], x_log: bool, groups: int) -> list[tuple[float, float]]:
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y) and (x > 0 or not x_log)]
    step = max(1, math.ceil(len(finite) * groups / MAX_DOTS))
    return finite[::step]
