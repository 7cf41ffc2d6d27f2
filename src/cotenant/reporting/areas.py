"""Stacked areas over one pair of axes, with a line above them.

A module of its own: the other charts have one value at each place, and these have several that add up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from cotenant.reporting.axes import Frame, svg, text

MAX_POINTS = 800
"""Points of one outline; longer series are drawn by the peak of each group of neighbors."""


class Area(NamedTuple):
    """A layer of the stack. `tone`: CSS class of its color; `values`: one for each place."""

    name: str
    tone: str
    values: Sequence[float]


class PhaseSpan(NamedTuple):
    """A stretch of places with a name, from `first` on."""

    first: int
    name: str


def areas(
    layers: Sequence[Area],
    outline: Sequence[float],
    *,
    phases: Sequence[PhaseSpan] = (),
    limit: tuple[float, str] | None = None,
    x_label: str,
    y_label: str,
    outline_name: str = "reserved",
    width: int = 900,
    height: int = 360,
) -> str:
    """The layers on top of each other, the first at the bottom; `outline` is drawn as a line over them.

    Values are held until the next place. `limit`: a height to mark, with its name.
    """
    count = len(outline)
    places = list(_places([sum(column) for column in zip(*(layer.values for layer in layers), strict=True)]))
    top = max(max(outline, default=0.0), 0.0 if limit is None else limit[0]) * 1.12 or 1.0
    frame = Frame((0.0, float(max(1, count - 1))), (0.0, top), width, height)
    parts = frame.axes(x_label, y_label)
    below = [0.0] * len(places)
    for layer in layers:
        above = [base + layer.values[place] for base, place in zip(below, places, strict=True)]
        if any(layer.values[place] for place in places):
            path = f"{_steps(frame, places, above)}{_steps(frame, places, below, back=True)}Z"
            parts.append(f'<path class="{layer.tone}" d="{path}"><title>{escape(layer.name)}</title></path>')
        below = above
    line = _steps(frame, places, [outline[place] for place in places])
    parts.append(f'<path class="line outline" d="{line}"><title>{escape(outline_name)}</title></path>')
    if limit is not None:
        y = frame.y(limit[0])
        parts.append(f'<path class="front" d="M{frame.left:g} {y:.1f}H{frame.right:g}"/>')
        parts.append(text(frame.right - 6, y - 5, limit[1], anchor="end", tone="value"))
    ends = [*(phase.first for phase in phases[1:]), count]
    for phase, end in zip(phases, ends, strict=False):  # without phases there is one end too many
        if end - phase.first > 0.06 * count:
            middle = frame.x((phase.first + end) / 2)
            parts.append(text(middle, frame.top + 10, phase.name, anchor="middle", tone="tick"))
    return svg(width, height, parts)


def _places(sums: Sequence[float]) -> Iterator[int]:
    """Places to draw: the peak of each group of neighbors, so that no peak is lost, and both ends."""
    stride = -(-len(sums) // MAX_POINTS) or 1
    peaks = {max(range(i, min(i + stride, len(sums))), key=sums.__getitem__) for i in range(0, len(sums), stride)}
    return iter(sorted(peaks | ({0, len(sums) - 1} if sums else set())))


def _steps(frame: Frame, places: Sequence[int], values: Sequence[float], *, back: bool = False) -> str:
    """A path through the values as steps, backwards where it closes an area."""
    points: list[tuple[float, float]] = []
    for place, value in zip(places, values, strict=True):
        if points:
            points.append((frame.x(place), points[-1][1]))
        points.append((frame.x(place), frame.y(value)))
    if back:
        points.reverse()
    return "".join(f"{'L' if i or back else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
