"""What the policies that share GPUs by memory promise have in common; they differ in the GPU they like best."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.scheduling import filters, orders
from cotenant.scheduling.policies.published import gib
from cotenant.scheduling.ranked import Collocation, Ranked
from cotenant.scheduling.scores import Score


def by_memory(name: str, score: Score) -> Callable[..., Ranked]:
    """A policy that admits by promise, settling and SM activity, and takes the GPU with the best `score`."""

    def policy(
        *,
        smact_limit: float = 0.80,
        settle_s: float = 15.0,
        most_jobs: int | None = None,
        spare_gib: float = 0.0,
        backfill: bool = True,
        keep_after_s: float | None = 1800.0,
        sharing: Collocation = "time-sliced",
    ) -> Ranked:
        """Options as in `filters.smact_below`, `filters.settled`, `filters.at_most` and `Ranked`.

        `spare_gib` stays free besides all promises, for what fragments, or is held outside any process.
        """
        crowd = () if most_jobs is None else (filters.at_most(most_jobs),)
        return Ranked(
            name=name,
            order=orders.fifo,
            gates=(filters.settled(settle_s), filters.smact_below(smact_limit), *crowd),
            score=score,
            backfill=backfill,
            keep_after_s=keep_after_s,
            sharing=sharing,
            spare_bytes=gib(spare_gib, "memory to spare"),
        )

    return policy
