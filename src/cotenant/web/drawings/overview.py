"""All GPUs of a large server as a grid of squares, linked to the pages that show them.

A module of its own: one drawing each.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from markupsafe import Markup

COLUMNS = 48
CELL, SQUARE = 10, 8
LEVELS = 4


def overview(totals: Mapping[str, Any], page_size: int, *, stale_after_s: float) -> Markup:
    """A square for each GPU, darker where more of its memory is promised; one link for each page of `page_size`.

    Squares of one color that are beside each other are one dashed line: the style sheet dashes it by `SQUARE`, and
    leaves the rest of `CELL` free. Every subpath begins the pattern anew (SVG 2, 13.5.6).
    """
    levels = [
        _level(ratio, age_s, stale_after_s)
        for ratio, age_s in zip(totals["promised_ratios"], totals["sample_ages_s"], strict=True)
    ]
    rows = -(-len(levels) // COLUMNS)
    links = []
    for page, first in enumerate(range(0, len(levels), page_size), start=1):
        last = min(first + page_size, len(levels)) - 1
        paths: dict[str, str] = {}
        for (row, level), members in groupby(range(first, last + 1), key=lambda i: (i // COLUMNS, levels[i])):
            places = list(members)
            x, y = places[0] % COLUMNS * CELL + (CELL - SQUARE) // 2, row * CELL + CELL // 2
            paths[level] = f"{paths.get(level, '')}M{x} {y}h{len(places) * CELL - (CELL - SQUARE)}"
        cells = "".join(f'<path class="{level}" d="{path}"/>' for level, path in sorted(paths.items()))
        links.append(f'<a href="/?gpus={page}" aria-label="GPUs {first} to {last}">{cells}</a>')
    return Markup(
        f'<svg class="overview" viewBox="0 0 {COLUMNS * CELL} {rows * CELL}" role="group" '
        f'aria-label="{len(levels)} GPUs">{"".join(links)}</svg>'
    )


def _level(promised_ratio: float, age_s: float | None, stale_after_s: float) -> str:
    """`lN`: so many quarters of its memory are promised, 0 for none; `stale`: it was not read lately."""
    if age_s is None or age_s > stale_after_s:
        return "stale"
    return f"l{0 if not promised_ratio else min(LEVELS, 1 + int(LEVELS * promised_ratio))}"
