"""Replays a trace on a cluster under a policy."""

from __future__ import annotations

import hashlib
import math
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cotenant.core.errors import UsageError
from cotenant.gpus.power_model import PowerModel, power_model
from cotenant.osutil.garbage_collection import collection_paused
from cotenant.scheduling import policies
from cotenant.scheduling.moves import move_planner
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions, Policy
from cotenant.scheduling.placement.snapshot_adapter import make_placer
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.repartition import RepartitionPlanner
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.history_feed import HistoryFeed
from cotenant.sim.engine.layouts import LayoutChange, MigSlots, with_all_instances
from cotenant.sim.engine.records import COMPLETED, GpuMoment, GpuRun, GpuTotals, JobColumns
from cotenant.sim.engine.simulation import Simulation
from cotenant.sim.interference import Interference, standard
from cotenant.sim.memory_source import JobFactory
from cotenant.sim.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationResult:
    """What became of every job and every GPU.

    Attributes:
        policy, estimator: names, for reports.
        columns: what became of each job; `totals`: sums of each GPU.
        moments: use of each GPU over time, if `config.record` is set; `runs`: attempts of each GPU, by their ends.
        idle_while_waiting_s: GPU seconds in which a GPU was empty while a job was pending.
        event_count: events that changed something; `decisions`: how often the policy decided.
        layouts: the repartitions of its MIG GPUs; None where layouts were fixed.
        wall_s: wall-clock time of the simulation.
    """

    trace: Trace
    cluster: Cluster
    policy: str
    estimator: str
    config: SimulationConfig
    columns: JobColumns
    totals: tuple[GpuTotals, ...]
    idle_while_waiting_s: float
    event_count: int
    decisions: int
    moments: tuple[tuple[GpuMoment, ...], ...] | None = None
    runs: tuple[tuple[GpuRun, ...], ...] | None = None
    layouts: tuple[LayoutChange, ...] | None = None
    wall_s: float = field(default=0.0)

    def digest(self) -> str:
        """16 hexadecimal digits that are equal for equal trace, cluster, policy and seed."""
        columns = self.columns
        sha = hashlib.sha256(self.trace.digest().encode())
        for column in (
            columns.start_s,
            columns.end_s,
            columns.run_s,
            columns.attempts,
            columns.ooms,
            columns.outcome,
        ):
            sha.update(column.tobytes())
        for totals in self.totals:
            sha.update(array("d", totals).tobytes())
        return sha.hexdigest()[:16]

    @property
    def makespan_s(self) -> float:
        """First submission to last end; NaN if no job ended."""
        ends_s = [end_s for end_s in self.columns.end_s if not math.isnan(end_s)]
        return max(ends_s) - self.trace.submit_s[0] if ends_s else math.nan

    @property
    def completed(self) -> int:
        """Jobs that completed successfully."""
        return sum(1 for outcome in self.columns.outcome if outcome == COMPLETED)


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
    history: WorkloadHistory | None = None,
    learn: bool | None = None,
    power_of: Callable[[str], PowerModel] | None = None,
) -> SimulationResult:
    """Replay `trace` on `cluster` under a policy, given as an object or by name and `options`.

    `interference` defaults to the measured pairs and the fits to them. Every job requests `max_slowdown`. With `learn`
    the policy gets a history like the daemon's, empty at first; the default is to learn unless the policy never shares
    GPUs or uses no history. `facts` replaces the history; `history` is one that learns, in place of an empty one.

    Raises:
        UnknownName: there is no such policy or estimator.
        UsageError: the policy has no such option, or no GPU can be repartitioned.
    """
    chosen = policies.create(policy, options) if isinstance(policy, str) else policy
    config = (config or SimulationConfig()).with_window(getattr(chosen, "window_s", None))
    began_s = time.perf_counter()
    job_of = JobFactory(trace, estimator, max_slowdown=max_slowdown, movable=config.movable())
    if learn is None:
        learn = facts is None and not getattr(chosen, "exclusive", False) and getattr(chosen, "uses_history", True)
    history = history or WorkloadHistory(max_slowdown=getattr(chosen, "max_slowdown", None))
    feed = _history_feed(chosen, history, job_of, len(trace), config) if learn else None
    known: JobPredictions = feed.history if feed is not None else facts or NO_PREDICTIONS
    mig_gpus: Sequence[MigSlots] = ()
    if config.repartition is not None:
        cluster, mig_gpus = with_all_instances(cluster)
        if not mig_gpus:
            raise UsageError("no GPU to repartition", hint="write e.g. `4xA100-40GB/3g.20gb+3g.20gb`")
    known_history = feed.history if feed is not None else WorkloadHistory()
    simulation = Simulation(
        trace,
        cluster,
        make_placer(chosen, known),
        job_of,
        interference or standard(),
        config=config,
        power_of=power_of or power_model,
        history_feed=feed,
        planner=move_planner(chosen, feed.history) if feed is not None and config.movable_share else None,
        repartition=None
        if config.repartition is None
        else (RepartitionPlanner(chosen, config.repartition, known_history), mig_gpus),
    )
    with collection_paused():
        simulation.run()
    return _result(
        simulation, trace, cluster, policy=chosen.name, estimator=estimator, config=config,
        wall_s=time.perf_counter() - began_s,
    )  # fmt: skip


def _history_feed(
    policy: Policy, history: WorkloadHistory, job_of: JobFactory, jobs: int, config: SimulationConfig
) -> HistoryFeed:
    minds_company = getattr(policy, "uses_predictions", True)
    return HistoryFeed(history, job_of, jobs, minds_company=minds_company, reports_steps=config.reports_steps)


def _result(
    simulation: Simulation,
    trace: Trace,
    cluster: Cluster,
    *,
    policy: str,
    estimator: str,
    config: SimulationConfig,
    wall_s: float,
) -> SimulationResult:
    """The sums and records of a simulation that has run."""
    return SimulationResult(
        trace=trace,
        cluster=cluster,
        policy=policy,
        estimator=estimator,
        config=config,
        columns=simulation.columns,
        totals=tuple(gpu.totals() for gpu in simulation.gpus),
        idle_while_waiting_s=simulation.idle_while_waiting_s,
        event_count=simulation.event_count,
        decisions=simulation.decisions,
        moments=tuple(tuple(gpu.moments or ()) for gpu in simulation.gpus) if config.record else None,
        runs=tuple(tuple(gpu.runs or ()) for gpu in simulation.gpus) if config.record else None,
        layouts=tuple(simulation.layouts.changes) if simulation.layouts is not None else None,
        wall_s=wall_s,
    )
