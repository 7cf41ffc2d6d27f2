"""Charts of `chapter6.py`: simulated figures as bars, the range over seeds as whiskers, published ones as diamonds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from cotenant.reporting.charts import Bar, bars
from cotenant.reporting.style import STYLE

WIDTH, TITLE, GAP = 430, 26, 18


class Row(NamedTuple):
    """One policy: by figure (min, mean, max) of the simulation and the published value or None."""

    name: str
    figures: Mapping[str, tuple[float, float, float, float | None]]


def draw(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Write an SVG with one panel per figure, two in a row."""
    names = list(rows[0].figures)
    panels = [_panel(name, rows) for name in names]
    high = len(rows) * 22 + 4 + TITLE + GAP
    down = (len(panels) + 1) // 2
    width, height = 2 * WIDTH + GAP, down * high + 2 * TITLE
    parts = [f'<text x="0" y="18" style="font-weight:600;font-size:15px">{escape(title)}</text>']
    for place, (name, drawn) in enumerate(zip(names, panels, strict=True)):
        x, y = place % 2 * (WIDTH + GAP), place // 2 * high + 2 * TITLE
        parts.append(f'<text x="{x}" y="{y - 8}" style="font-weight:600">{escape(name)}</text>')
        parts.append(drawn.replace("<svg ", f'<svg x="{x}" y="{y}" ', 1))
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 0 {width + 16} {height}" width="{width}">'
        f'<style>{STYLE}</style><rect x="-8" width="{width + 16}" height="{height}" fill="var(--paper)"/>'
        f"{''.join(parts)}</svg>\n",
        encoding="utf-8",
    )


def _panel(name: str, rows: Sequence[Row]) -> str:
    found = []
    for row in rows:
        low, mean, high, published = row.figures[name]
        spread = (low, high) if high > low else (None, None)
        found.append(Bar(row.name, "base" if published is None else "t0", mean, *spread, mark=published))
    return bars(found, unit="", width=WIDTH)
