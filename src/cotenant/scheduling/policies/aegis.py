"""AEGIS as published (2026), CARMA's successor: observation from the first GPU activity, a risk score, rising floors.

A GPU takes another job if the memory fits, 30 s after its newest resident was first active, unless the risk over that
window is too high: SMACT .65 and (SMOCC .35 or DRAMA .50). A job that ran out of memory is retried with the next floor
above its promise: 25, 50 or 75 % of a GPU, at most 8 GiB more; then exclusively.

Different here, as for `carma`: promises instead of snapshots, a retry blocks no other job, unreadable GPUs admit no
job, and a learned minimum counts where it is larger than the floor.

Source: ehsanyousefzadehasl/AEGIS, configuration and recovery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cotenant.core.job import Job
from cotenant.core.units import GiB
from cotenant.scheduling.demand import PROMISE_STEP_BYTES, Demand, capacity_bytes
from cotenant.scheduling.placement import gates, orders
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.policies._options import PREFERENCES, Preference, unknown_bytes
from cotenant.scheduling.recovery import ran_out_of_memory

FLOOR_SHARES = (0.25, 0.50, 0.75)
MAX_STEP_BYTES = 8 * GiB


def aegis(
    *,
    prefer: Preference = "most-memory",
    smact_limit: float = 0.65,
    smocc_limit: float = 0.35,
    drama_limit: float = 0.50,
    warmup_s: float = 30.0,
    unknown_gib: float | None = None,
    backfill: bool = False,
    sharing: Collocation = "time-sliced",
) -> Ranked:
    """Limits as published; `prefer` is the GPU taken among those that admit the job."""
    return Ranked(
        name="aegis",
        order=orders.retries_first,
        gates=(gates.warming_up(warmup_s), gates.pressure_too_high(smact_limit, smocc_limit, drama_limit, risk=True)),
        score=PREFERENCES[prefer],
        backfill=backfill,
        unknown_bytes=unknown_bytes(unknown_gib),
        after_oom=next_floor,
        sharing=sharing,
    )


def next_floor(job: Job, totals_bytes: Sequence[int], demand: Demand) -> Demand:
    """The next floor above the promise of the last attempt that ran out of memory; exclusive above the last floor."""
    if demand.exclusive or demand.bytes is None:
        return demand
    promised = [
        attempt.placement.promised_bytes for attempt in job.attempts if attempt.exit and ran_out_of_memory(attempt.exit)
    ][-1]
    capacity = capacity_bytes(totals_bytes, demand.gpus) or 0
    above = next((int(share * capacity) for share in FLOOR_SHARES if share * capacity > promised), None)
    if above is None:
        return replace(demand, exclusive=True, exclusive_reason="it ran out of memory above the last floor")
    floor = max(demand.bytes, min(above, promised + MAX_STEP_BYTES))
    return replace(demand, bytes=floor // PROMISE_STEP_BYTES * PROMISE_STEP_BYTES)
