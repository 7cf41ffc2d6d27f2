"""What a composed policy is made of: an order of the queue, gates, a score, a pairing rule, and demands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from cotenant.core.errors import UsageError
from cotenant.core.job import Job
from cotenant.scheduling.demand import Demand, GpuSizes, demand_of
from cotenant.scheduling.placement import orders
from cotenant.scheduling.placement.gates import AdmissionGate
from cotenant.scheduling.placement.orders import Order
from cotenant.scheduling.placement.pairing import PairingRule
from cotenant.scheduling.placement.scores import Score
from cotenant.scheduling.recovery import ran_out_of_memory

Collocation = Literal["time-sliced", "mps", "mig"]
"""The ways to share a GPU: `Sharing` without `exclusive`."""

AfterOom = Callable[[Job, Sequence[int], Demand], Demand]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRule:
    """When a policy moves jobs; see `scheduling.moves` and `scheduling.move_watch`. Times are in GPU time."""

    min_gain: float = 0.3
    hysteresis: float = 2.0
    turn_ratio: float = 2.0
    max_moves: int = 4
    min_run_s: float = 300.0
    period_s: float = 60.0
    settle_s: float = 15.0
    quiet_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Considers jobs in `order`; each gets the best GPU by `pairing` and `score` among those that admit it.

    Every composition obeys the rules of `rules`: fresh samples, reservations, exclusive jobs, promises. A job of
    several GPUs gets all of them or none.

    Attributes:
        pairing: which residents a job may join, and at what cost; compared before `score`.
        backfill: jobs may overtake one that waits. Without it the first job that waits blocks all behind it, except a
            retry, which must not stop the queue because it failed; with `retries_block` it does.
        reserve_after_s: with backfill, GPUs are reserved for a job that has waited for this long: they admit nobody
            else until it starts. One job at a time. None: never.
        exclusive: every job gets its GPUs exclusively.
        sharing: how other jobs share.
        headroom_bytes: must be available in addition to a job's demand, but are not promised.
        unknown_bytes: promised to a job of unknown need. None: such a job runs exclusively.
        after_oom: the demand of a job that ran out of memory, given the GPUs there are (largest first) and what it
            would demand otherwise. Without it, gates on activity do not hold that retry.
        window_s: the window of samples that its gates and score look at, where it is longer than the configured one.
        uses_history: whether the need of a job may come from earlier jobs of its workload.
        moves: when running jobs that can save their state are moved; None: never.
        one_node: all GPUs of a job must be of one node.
        max_slowdown: the slowdown bound of jobs that request none; None: the policy keeps no bound.
    """

    name: str
    order: Order
    score: Score
    gates: tuple[AdmissionGate, ...] = ()
    pairing: PairingRule[Any, Any] | None = None
    backfill: bool = True
    retries_block: bool = False
    reserve_after_s: float | None = None
    exclusive: bool = False
    sharing: Collocation = "time-sliced"
    headroom_bytes: int = 0
    unknown_bytes: int | None = None
    after_oom: AfterOom | None = None
    window_s: float | None = None
    uses_history: bool = True
    moves: MoveRule | None = None
    one_node: bool = False
    max_slowdown: float | None = None

    def __post_init__(self) -> None:
        after_s = self.reserve_after_s
        if after_s is not None and not 0 <= after_s < math.inf:
            raise UsageError(f"`reserve_after_s` must be >= 0 and finite, got {after_s:g}", hint="write e.g. `1800`")
        object.__setattr__(self, "gates", tuple(gate for gate in self.gates if not gate.never_closes))

    @property
    def uses_predictions(self) -> bool:
        """Whether it uses predictions of interference or of durations."""
        return self.pairing is not None or self.order not in (orders.fifo, orders.retries_first)

    def demand(self, job: Job, sizes: GpuSizes, learned_bytes: int | None, *, is_timed: bool = False) -> Demand:
        """What a job demands of each of its GPUs under this policy. `is_timed`: some GPUs are available for a time."""
        demand = self._demand(job, sizes.of(job.spec.gpus), learned_bytes)
        if is_timed and job.spec.time_limit_s is not None:
            demand = replace(demand, time_limit_s=job.spec.time_limit_s)
        return replace(demand, one_node=True) if self.one_node and demand.gpus > 1 else demand

    def _demand(self, job: Job, totals_bytes: Sequence[int], learned_bytes: int | None) -> Demand:
        if not self.uses_history:
            learned_bytes = None
        demand = demand_of(job, totals_bytes, learned_bytes=learned_bytes, unknown_bytes=self.unknown_bytes)
        if self.after_oom is not None and any(
            attempt.exit and ran_out_of_memory(attempt.exit) for attempt in job.attempts
        ):
            demand = replace(self.after_oom(job, totals_bytes, demand), ignores_activity=False)
        if demand.exclusive:
            return demand
        if self.exclusive:
            return replace(demand, exclusive=True, exclusive_reason="the policy shares no GPU")
        return replace(demand, headroom_bytes=self.headroom_bytes) if self.headroom_bytes else demand
