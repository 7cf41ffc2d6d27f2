"""CARMA as published (2025): first come, first served, a gate on pressure, 2 GiB of headroom, exclusive retries.

A GPU takes another job if its estimate and 2 GiB fit, unless its SMs are active (.80) and well filled (.45) or its
memory is busy (.40); and only 30 s after its newest resident was first active. A retry goes first, to empty GPUs.
`unknown_gib` is promised to a job without an estimate, as CARMA does with 5 GB; without it, such a job runs
exclusively.

Different here: free memory is what is not promised, not what a snapshot shows; a retry that waits does not stop
sharing; and a GPU that cannot be read admits no job, where CARMA's comparison with NaN admits all.

Source: itu-rad/CARMA, src/server.py and src/monitor.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cotenant.core.job import Job
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement import gates, orders
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.policies._options import PREFERENCES, Preference, gib_to_bytes, unknown_bytes


def carma(
    *,
    prefer: Preference = "most-memory",
    smact_limit: float = 0.80,
    smocc_limit: float = 0.45,
    drama_limit: float = 0.40,
    warmup_s: float = 30.0,
    headroom_gib: float = 2.0,
    unknown_gib: float | None = None,
    backfill: bool = False,
    retries_block: bool = False,
    sharing: Collocation = "time-sliced",
) -> Ranked:
    """Limits as published; `prefer` is the GPU taken among those that admit the job.

    In CARMA's code no job shares while one that ran out of memory waits: that is `retries_block`.
    """
    return Ranked(
        name="carma",
        order=orders.retries_first,
        gates=(
            gates.warming_up(warmup_s, first_activity_timeout_s=1000.0),
            gates.pressure_too_high(smact_limit, smocc_limit, drama_limit),
        ),
        score=PREFERENCES[prefer],
        backfill=backfill,
        retries_block=retries_block,
        headroom_bytes=gib_to_bytes(headroom_gib, "headroom"),
        unknown_bytes=unknown_bytes(unknown_gib),
        after_oom=exclusive_after_oom,
        sharing=sharing,
    )


def exclusive_after_oom(_job: Job, _totals_bytes: Sequence[int], demand: Demand) -> Demand:
    """The next attempt has its GPUs exclusively."""
    if demand.exclusive:
        return demand
    return replace(demand, exclusive=True, exclusive_reason="it ran out of memory among neighbors")
