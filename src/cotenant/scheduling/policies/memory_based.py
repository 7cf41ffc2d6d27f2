"""What the policies that share GPUs by memory promise have in common; they differ in the GPU they like best."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.scheduling.placement import gates, orders
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.placement.scores import Score
from cotenant.scheduling.policies._options import gib_to_bytes


def memory_based(name: str, score: Score) -> Callable[..., Ranked]:
    """A policy that admits by promise, settling and SM activity, and takes the GPU with the best `score`."""

    def policy(
        *,
        smact_limit: float = 0.80,
        warmup_s: float = 15.0,
        max_jobs: int | None = None,
        headroom_gib: float = 0.0,
        backfill: bool = True,
        reserve_after_s: float | None = 1800.0,
        sharing: Collocation = "time-sliced",
    ) -> Ranked:
        """Options as in `filters.smact_too_high`, `filters.settled`, `filters.max_jobs` and `Ranked`.

        `headroom_gib` stays free besides all promises, for what fragments, or is held outside any process.
        """
        crowd = () if max_jobs is None else (gates.max_jobs(max_jobs),)
        return Ranked(
            name=name,
            order=orders.fifo,
            gates=(gates.warming_up(warmup_s), gates.smact_too_high(smact_limit), *crowd),
            score=score,
            backfill=backfill,
            reserve_after_s=reserve_after_s,
            sharing=sharing,
            headroom_bytes=gib_to_bytes(headroom_gib, "memory to spare"),
        )

    return policy
