"""Share by memory promise, on the first GPU that fits; spare GPUs whose SMs are busy."""

from __future__ import annotations

from cotenant.scheduling import filters, orders, scores
from cotenant.scheduling.ranked import Collocation, Ranked


def first_fit(
    *,
    smact_limit: float = 0.80,
    settle_s: float = 15.0,
    backfill: bool = True,
    keep_after_s: float | None = 1800.0,
    sharing: Collocation = "time-sliced",
) -> Ranked:
    """The simplest way to pack.

    Options as in `filters.smact_below`, `filters.settled` and `Ranked`.
    """
    return Ranked(
        name="first-fit",
        order=orders.fifo,
        filters=(
            filters.honors_exclusive,
            filters.fits_memory,
            filters.settled(settle_s),
            filters.smact_below(smact_limit),
        ),
        score=scores.first,
        backfill=backfill,
        keep_after_s=keep_after_s,
        sharing=sharing,
    )
