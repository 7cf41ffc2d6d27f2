"""How close the policies of an evaluation come to the shortest possible makespan."""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.core.errors import CotenantError
from cotenant.sim.evaluation import Evaluation
from cotenant.sim.limits.bounds import makespan_bound
from cotenant.sim.limits.oracle_search import best_found

MAX_JOBS_FOR_SEARCH = 200
MAX_PROFILES_FOR_BOUND = 64
SEARCH_TRIES = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class MakespanLimits:
    """The shortest makespan known and the shortest possible one.

    Attributes:
        bound_s: no schedule is shorter; None if no bound could be computed.
        best_s: shortest makespan found, by the policy or search named in `best_by`.
        note: why a bound or a search is missing.
    """

    bound_s: float | None
    best_s: float
    best_by: str
    note: str = ""

    def text(self, makespan_s: float) -> str:
        """`12% above the best known, 20% above the proven bound`."""
        above_best = f"{makespan_s / self.best_s - 1:.0%} above the best known"
        if self.bound_s is None:
            return above_best
        return f"{above_best}, {makespan_s / self.bound_s - 1:.0%} above the proven bound"


def makespan_limits(evaluation: Evaluation, *, tries: int = SEARCH_TRIES) -> MakespanLimits:
    """The proven bound, and the best makespan of the policies and of `tries` schedules of the oracle search.

    Traces of more than `MAX_JOBS_FOR_SEARCH` jobs are not searched. There is no bound without activity profiles, for
    MIG instances, or with more than `MAX_PROFILES_FOR_BOUND` profiles.
    """
    experiment = evaluation.experiment
    trace, cluster = experiment.trace, experiment.cluster
    best = min(evaluation.results, key=lambda result: result.metrics.makespan_s)
    best_s, best_by = best.metrics.makespan_s, best.policy
    is_mig = any(slot.is_mig for slot in cluster.slots)
    if not trace.has_profiles or is_mig or len(trace.profiles) > MAX_PROFILES_FOR_BOUND:
        note = (
            f"no bound: it needs whole GPUs and at most {MAX_PROFILES_FOR_BOUND} kinds of work, all with known activity"
        )
        return MakespanLimits(bound_s=None, best_s=best_s, best_by=best_by, note=note)
    notes = []
    if len(trace) > MAX_JOBS_FOR_SEARCH:
        notes.append(f"no search for a better schedule: the trace has more than {MAX_JOBS_FOR_SEARCH} jobs")
    else:
        found = best_found(trace, cluster, tries=tries, interference=experiment.interference, config=experiment.config)
        if found.value_s < best_s:
            best_s, best_by = found.value_s, f"an oracle search over {tries} schedules"
    try:
        bound = makespan_bound(trace, cluster, interference=experiment.interference, config=experiment.config)
    except CotenantError as error:
        reason = error.message if error.message.startswith("no bound") else f"no bound: {error.message}"
        return MakespanLimits(bound_s=None, best_s=best_s, best_by=best_by, note=reason)
    if bound.critical_path_s >= bound.makespan_s:
        notes.append("the bound is the arrival of one job plus its run time alone")
    return MakespanLimits(bound_s=bound.makespan_s, best_s=best_s, best_by=best_by, note="; ".join(notes))
