"""Charts of `chapter6.py`: simulated figures as bars, the range over seeds as whiskers, published ones as diamonds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from cotenant.reporting.charts import Bar, Line, bars, lines
from cotenant.reporting.style import STYLE

WIDTH, TITLE, GAP = 430, 26, 18
LINES_HEIGHT = 200


class Row(NamedTuple):
    """One policy: by figure (min, mean, max) of the simulation and the published value or None."""

    name: str
    figures: Mapping[str, tuple[float, float, float, float | None]]


def draw(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Write an SVG with one panel per figure, two in a row."""
    height = len(rows) * 22 + 4
    _sheet(path, title, [(name, _panel(name, rows)) for name in rows[0].figures], height)


def draw_over_time(path: Path, title: str, panels: Mapping[str, Sequence[Sequence[tuple[float, float]]]]) -> None:
    """Write an SVG with one panel per caption, two in a row: a line for each GPU over hours, panels of a row alike."""
    drawn = []
    tops = {
        caption.partition(",")[0]: max(
            y
            for other, gpus in panels.items()
            if other.partition(",")[0] == caption.partition(",")[0]
            for points in gpus
            for _, y in points
        )
        for caption in panels
    }
    for caption, gpus in panels.items():
        found = [Line(f"GPU {i}", f"t{i}", points) for i, points in enumerate(gpus)]
        top = 1.05 * tops[caption.partition(",")[0]]
        drawn.append((caption, lines(found, x_label="hours", y_label="", width=WIDTH, height=LINES_HEIGHT, top=top)))
    _sheet(path, title, drawn, LINES_HEIGHT)


def _sheet(path: Path, title: str, panels: Sequence[tuple[str, str]], height: int) -> None:
    """Write captioned SVGs of equal height, two in a row."""
    row_height = height + TITLE + GAP
    down = (len(panels) + 1) // 2
    width, total = 2 * WIDTH + GAP, down * row_height + 2 * TITLE
    parts = [f'<text x="0" y="18" style="font-weight:600;font-size:15px">{escape(title)}</text>']
    for place, (name, drawn) in enumerate(panels):
        x, y = place % 2 * (WIDTH + GAP), place // 2 * row_height + 2 * TITLE
        parts.append(f'<text x="{x}" y="{y - 8}" style="font-weight:600">{escape(name)}</text>')
        parts.append(drawn.replace("<svg ", f'<svg x="{x}" y="{y}" ', 1))
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 0 {width + 16} {total}" width="{width}">'
        f'<style>{STYLE}</style><rect x="-8" width="{width + 16}" height="{total}" fill="var(--paper)"/>'
        f"{''.join(parts)}</svg>\n",
        encoding="utf-8",
    )


def _panel(name: str, rows: Sequence[Row]) -> str:
    found = []
    for row in rows:
        low, mean, high, published = row.figures[name]
        tone = "base" if published is None else "t0"
        ends = {"low": low, "high": high} if high > low else {}
        found.append(Bar(row.name, tone, mean, mark=published, **ends))
    return bars(found, unit="", width=WIDTH)
