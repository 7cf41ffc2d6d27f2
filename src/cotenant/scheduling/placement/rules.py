"""What a composed policy is made of: an order of the queue, gates, a score, a match; what jobs ask for under it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cotenant.core.errors import UsageError
from cotenant.core.job import Job
from cotenant.scheduling.placement import orders
from cotenant.scheduling.placement.gates import AdmissionGate
from cotenant.scheduling.placement.memory_demand import MemoryDemand, demand_of
from cotenant.scheduling.placement.orders import Order
from cotenant.scheduling.placement.pairing import PairingRule
from cotenant.scheduling.placement.scores import Score
from cotenant.scheduling.recovery import ran_out_of_memory

Collocation = Literal["time-sliced", "mps", "mig"]
"""The ways to share a GPU; the remaining one of `Sharing` is not to share it."""


AfterOom = Callable[[Job, Sequence[int], MemoryDemand], MemoryDemand]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Takes jobs in `order`; each gets the best GPU by `match` or `score` among those that may take it.

    Readings that are fresh, GPUs kept for others, exclusive jobs and promises are respected by every composition,
    see `filters`. A job of several GPUs gets all or none.

    Attributes:
        match: which others a job may join, and on which GPU best; stands before `score`.
        backfill: a job that waits lets later ones pass. Without it the first that waits blocks all behind it,
            except a retry, which must not stop the queue because it failed; with `retries_block` it does.
        reserve_after_s: with backfill, a job that has waited for so long gets its GPUs emptied: they take nobody
            else until it starts. One job at a time. None: never.
        alone: every job gets its GPUs alone.
        sharing: how jobs that are not alone share.
        spare_bytes: must be available besides what a job needs, but are not promised.
        unknown_bytes: what a job of unknown need is promised. None: such a job runs alone.
        after_oom: what the next attempt of a job asks for that ran out of memory, given the GPUs there are (largest
            first) and what it would ask for otherwise. Without it, rules on activity do not hold that attempt.
    """

    name: str
    order: Order
    score: Score
    gates: tuple[AdmissionGate, ...] = ()
    match: PairingRule | None = None
    backfill: bool = True
    retries_block: bool = False
    reserve_after_s: float | None = None
    alone: bool = False
    sharing: Collocation = "time-sliced"
    headroom_bytes: int = 0
    unknown_bytes: int | None = None
    after_oom: AfterOom | None = None

    def __post_init__(self) -> None:
        if self.reserve_after_s is not None and not 0 <= self.reserve_after_s < math.inf:
            raise UsageError(f"GPUs cannot be kept after {self.reserve_after_s:g} seconds", hint="write e.g. `1800`")
        object.__setattr__(self, "gates", tuple(each for each in self.gates if not each.never_closes))

    @property
    def minds_company(self) -> bool:
        """Whether it asks a history what jobs do to each other, or how long they run."""
        return self.match is not None or self.order not in (orders.fifo, orders.retries_first)

    def need(self, job: Job, totals_bytes: Sequence[int], learned_bytes: int | None) -> MemoryDemand:
        """What a job asks of each of its GPUs under this policy."""
        need = demand_of(job, totals_bytes, learned_bytes=learned_bytes, unknown_bytes=self.unknown_bytes)
        if self.after_oom is not None and any(each.exit and ran_out_of_memory(each.exit) for each in job.attempts):
            need = replace(self.after_oom(job, totals_bytes, need), ignores_activity=False)
        if need.alone:
            return need
        if self.alone:
            return replace(need, alone=True, exclusive_reason="the policy shares no GPU")
        return replace(need, headroom_bytes=self.headroom_bytes) if self.headroom_bytes else need
