"""Policies that share GPUs by memory promise, and differ in the GPU they prefer; and the baseline that never shares."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.placement.scores import Score
from cotenant.scheduling.policies._options import gib_to_bytes


def memory_based(name: str, score: Score) -> Callable[..., Ranked]:
    """A policy that admits by promise, warm-up and SM activity, and takes the GPU with the best `score`."""

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
        """Options as in `gates.smact_too_high`, `gates.warming_up`, `gates.max_jobs` and `Composition`.

        `headroom_gib` stays free in addition to all promises, for fragmentation and memory outside any process.
        """
        count = () if max_jobs is None else (gates.max_jobs(max_jobs),)
        return Ranked(
            name=name,
            order=orders.fifo,
            gates=(gates.warming_up(warmup_s), gates.smact_too_high(smact_limit), *count),
            score=score,
            backfill=backfill,
            reserve_after_s=reserve_after_s,
            sharing=sharing,
            headroom_bytes=gib_to_bytes(headroom_gib, "headroom"),
        )

    return policy


most_memory = memory_based("most-memory", scores.most_available_memory)
"""The GPU with most memory available. Spreads jobs, so that each has room to outgrow its promise."""

best_fit = memory_based("best-fit", scores.least_available_memory)
"""The fullest GPU that still fits. Packs jobs, so that whole GPUs stay free for gangs and large jobs."""

first_fit = memory_based("first-fit", scores.first)
"""The first GPU that fits: the simplest way to pack."""

round_robin = memory_based("round-robin", scores.round_robin)
"""The next GPU in turn that fits."""

least_utilized = memory_based("least-utilized", scores.least_active)
"""The GPU whose SMs are least active (LUG in the literature)."""

most_utilized = memory_based("most-utilized", scores.most_active)
"""The GPU whose SMs are most active below the limit (MUG): others stay idle for long."""


def exclusive(*, backfill: bool = False) -> Ranked:
    """Every job gets its GPUs exclusively, first come, first served: what most servers do, and the baseline.

    `backfill` lets small jobs overtake a gang that waits.
    """
    return Ranked(name="exclusive", order=orders.fifo, score=scores.first, backfill=backfill, exclusive=True)
