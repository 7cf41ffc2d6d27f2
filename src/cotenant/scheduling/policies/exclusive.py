"""Every job alone on its GPUs, in order: what most servers do today, and the baseline of every comparison."""

from __future__ import annotations

from cotenant.scheduling.placement import orders, scores
from cotenant.scheduling.placement.ranked import Ranked


def exclusive(*, backfill: bool = False) -> Ranked:
    """First come, first served; `backfill` lets small jobs pass a gang that waits."""
    return Ranked(name="exclusive", order=orders.fifo, score=scores.first, backfill=backfill, alone=True)
