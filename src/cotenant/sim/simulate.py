"""One simulated run: a trace, a cluster, a policy, and what is known of the jobs; out comes what became of each."""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cotenant.scheduling import policies
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions, Policy
from cotenant.scheduling.placement.snapshot_adapter import make_placer
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.gpu_totals import GpuMoment, GpuTotals
from cotenant.sim.engine.history_feed import HistoryFeed
from cotenant.sim.engine.simulation import COMPLETED, Simulation
from cotenant.sim.interference import Interference, standard
from cotenant.sim.memory_source import JobFactory
from cotenant.sim.power import PowerModel, power_model
from cotenant.sim.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationResult:
    """What became of every job and of every GPU; columns as in `Simulation`.

    Attributes:
        policy, estimator: for reports.
        moments: what each GPU did over time, if that was recorded.
        wall_s: how long it took to simulate; not part of the result.
    """

    trace: Trace
    cluster: Cluster
    policy: str
    estimator: str
    config: SimulationConfig
    start_s: array[float]
    end_s: array[float]
    alone_s: array[float]
    run_s: array[float]
    lost_s: array[float]
    retry_wait_s: array[float]
    attempts: array[int]
    ooms: array[int]
    outcome: array[int]
    totals: tuple[GpuTotals, ...]
    idle_while_waiting_s: float
    event_count: int
    decisions: int
    moments: tuple[tuple[GpuMoment, ...], ...] | None = None
    wall_s: float = field(default=0.0, compare=False)

    def digest(self) -> str:
        """Names this very result: the same trace, cluster, policy and seed give the same 16 hexadecimal digits."""
        found = hashlib.sha256(self.trace.digest().encode())
        for column in (self.start_s, self.end_s, self.run_s, self.attempts, self.ooms, self.outcome):
            found.update(column.tobytes())
        for each in self.totals:
            found.update(array("d", each).tobytes())
        return found.hexdigest()[:16]

    @property
    def makespan_s(self) -> float:
        """First submission to last end; NaN where no job ended."""
        ends = [each for each in self.end_s if not math.isnan(each)]
        return max(ends) - self.trace.submit_s[0] if ends else math.nan

    @property
    def completed(self) -> int:
        """Jobs that ended well."""
        return sum(1 for each in self.outcome if each == COMPLETED)


def simulate(
    trace: Trace,
    cluster: Cluster,
    policy: Policy | str,
    *,
    options: Mapping[str, object] | None = None,
    estimator: str = "oracle",
    interference: Interference | None = None,
    config: SimulationConfig | None = None,
    max_slowdown: float | None = None,
    facts: JobPredictions | None = None,
    learn: bool | None = None,
    power_of: Callable[[str], PowerModel] | None = None,
) -> SimulationResult:
    """Replay `trace` on `cluster` under a policy, given as one or by name and `options`.

    `interference` is the truth that jobs run under, all measured pairs and what was fitted to them by default;
    `parse_slowdown` is what every user asks for. With `learn`, the policy has a history as the daemon's has, empty at
    first; by default all but those that share nothing have it. `facts` is what it may know of jobs instead.

    Raises:
        UnknownName: no such policy or estimator.
        UsageError: it has no such option.
    """
    config = config or SimulationConfig()
    chosen = policies.create(policy, options) if isinstance(policy, str) else policy
    began_s = time.perf_counter()
    maker = JobFactory(trace, estimator, max_slowdown=max_slowdown)
    if learn is None:
        learn = facts is None and not getattr(chosen, "alone", False)
    learner = _learner(chosen, maker, len(trace)) if learn else None
    known: JobPredictions = learner.history if learner is not None else facts or NO_PREDICTIONS
    world = Simulation(
        trace,
        cluster,
        make_placer(chosen, known),
        maker,
        interference or standard(),
        config=config,
        power_of=power_of or power_model,
        learner=learner,
    )
    world.run()
    return _run(world, policy=chosen.name, estimator=estimator, wall_s=time.perf_counter() - began_s)


def _learner(policy: Policy, job_of: JobFactory, count: int) -> HistoryFeed:
    return HistoryFeed(WorkloadHistory(), job_of, count, minds_company=getattr(policy, "minds_company", True))


def _run(world: Simulation, *, policy: str, estimator: str, wall_s: float) -> SimulationResult:
    """What a world holds when all has happened."""
    moments = tuple(tuple(card.moments or ()) for card in world.cards) if world.config.record else None
    return SimulationResult(
        trace=world.trace,
        cluster=world.cluster,
        policy=policy,
        estimator=estimator,
        config=world.config,
        start_s=world.start_s,
        end_s=world.end_s,
        alone_s=world.alone_s,
        run_s=world.run_s,
        lost_s=world.lost_s,
        retry_wait_s=world.retry_wait_s,
        attempts=world.attempts,
        ooms=world.ooms,
        outcome=world.outcome,
        totals=tuple(card.totals() for card in world.cards),
        idle_while_waiting_s=world.idle_while_waiting_s,
        event_count=world.event_count,
        decisions=world.decisions,
        moments=moments,
        wall_s=wall_s,
    )
