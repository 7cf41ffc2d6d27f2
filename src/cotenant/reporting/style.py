"""The style sheet of every report, and its colors: `t0` to `t15`, and `base` for a baseline.

A module of its own: pages, plots and the reports of several rooms use the same colors.
"""

from __future__ import annotations

from pathlib import Path

# Paul Tol's "bright" and "muted" schemes: distinct for color-blind readers too.
_COLORS = (
    "4477aa",
    "ee6677",
    "228833",
    "ccbb44",
    "66ccee",
    "aa3377",
    "882255",
    "44aa99",
    "999933",
    "cc6677",
    "332288",
    "117733",
    "ee8866",
    "77aadd",
    "bbcc33",
    "7a5c3e",
)
TONES = len(_COLORS)
"""How many color classes there are: `t0` fills, `s-t0` strokes."""

STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8") + "".join(
    f".t{i}{{fill:#{color};background:#{color}}}.s-t{i}{{stroke:#{color}}}\n" for i, color in enumerate(_COLORS)
)


def tone(index: int) -> str:
    """The color class of the `index`-th of several things; colors repeat after `TONES`."""
    return f"t{index % TONES}"
