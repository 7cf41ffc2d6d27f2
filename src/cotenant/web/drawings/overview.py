"""All GPUs of a large server as a grid of squares, linked to the pages that show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

COLUMNS = 48
CELL = 10
LEVELS = 4


def overview(gpus: Sequence[Mapping[str, Any]], page_size: int, *, stale_after_s: float) -> Markup:
    """A square for each GPU, darker where more of its memory is promised; one link for each page of `page_size`."""
    rows = -(-len(gpus) // COLUMNS)
    links = []
    for page, members in enumerate(gpus[i : i + page_size] for i in range(0, len(gpus), page_size)):
        squares: dict[str, str] = {}
        for i, gpu in enumerate(members, start=page * page_size):
            level = _level(gpu, stale_after_s)
            x, y = i % COLUMNS * CELL + CELL // 2, i // COLUMNS * CELL + CELL // 2
            squares[level] = f"{squares.get(level, '')}M{x} {y}h0"  # a line without length, with square ends
        cells = "".join(f'<path class="{level}" d="{path}"/>' for level, path in sorted(squares.items()))
        first, last = page * page_size, page * page_size + len(members) - 1
        links.append(f'<a href="/?gpus={page + 1}" aria-label="GPUs {first} to {last}">{cells}</a>')
    return Markup(
        f'<svg class="overview" viewBox="0 0 {COLUMNS * CELL} {rows * CELL}" role="group" '
        f'aria-label="{len(gpus)} GPUs">{"".join(links)}</svg>'
    )


def _level(gpu: Mapping[str, Any], stale_after_s: float) -> str:
    """`lN`: so many quarters of its memory are promised, 0 for none; `stale`: it was not read lately."""
    if gpu["sample_age_s"] is None or gpu["sample_age_s"] > stale_after_s:
        return "stale"
    promised = gpu["promised_bytes"]
    return f"l{0 if not promised else min(LEVELS, 1 + int(LEVELS * promised / gpu['memory_total_bytes']))}"
