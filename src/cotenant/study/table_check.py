"""How far shipped assumptions about interference are from what a study measured: `collocate --check`.

Checked are the pairs that ship for the GPU, the rules of the simulator for each way to share, its rule for MIG
instances, and the prior of the daemon's predictor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from cotenant.core import stats
from cotenant.core.gpu import Sharing, mig_slices
from cotenant.scheduling.prediction.interference import PriorInterference
from cotenant.scheduling.prediction.interference_table import InterferenceTable, WorkloadAlone
from cotenant.sim.interference import TrueActivity, standard
from cotenant.sim.interference.sharing import SLICES, slice_speed
from cotenant.sim.interference.tables import FILES, family_of, measured
from cotenant.study.interference_fit import GroupSlowdowns, activity_of


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumptionCheck:
    """Slowdowns that an assumption gives against measured ones, as relative errors.

    Attributes:
        cases: slowdowns compared; with none, errors are None. bias: mean error with its sign; above 0, too slow.
        worst: the case that is off most.
    """

    assumption: str
    cases: int
    median_error: float | None = None
    p90_error: float | None = None
    bias: float | None = None
    worst: str = ""

    @property
    def text(self) -> str:
        """A sentence for people."""
        if self.median_error is None or self.p90_error is None or self.bias is None:
            return f"{self.assumption}: no measured case."
        return (
            f"{self.assumption}: median error {self.median_error:.1%}, P90 {self.p90_error:.1%}, bias {self.bias:+.1%} "
            f"of {self.cases} slowdowns; worst {self.worst}."
        )


def check_assumptions(
    table: InterferenceTable, groups: Mapping[str, Sequence[GroupSlowdowns]]
) -> list[AssumptionCheck]:
    """All assumptions against the measured groups, by way to share, of the study that the table was fitted to."""
    workloads = table.workloads
    checks = [_shipped_pairs(table, groups.get("time-sliced", ()))]
    for way, runs in groups.items():
        mode = way.partition(":")[0]
        if mode == "mig":
            continue
        sharing: Sharing = "mps" if mode == "mps" else "time-sliced"
        simulated, prior = [], []
        for run in runs:
            activities = [_true_activity(workloads.get(key)) for key in run.workloads]
            known = [activity for activity in activities if activity is not None]
            if len(known) == len(run.workloads):
                speeds = standard().speeds(known, table.gpu, sharing)
                simulated += _cases(run, [1.0 / speed for speed in speeds], workloads)
            predicted = PriorInterference().slowdowns([activity_of(key, workloads) for key in run.workloads])
            prior += _cases(run, predicted, workloads)
        checks.append(_judge(f"Simulator, {way}", simulated))
        checks.append(_judge(f"Daemon's prior, {way}", prior))
    checks.append(_judge("Simulator, MIG instances", _slices(workloads.values())))
    checks += [
        AssumptionCheck(
            assumption=f"Fitted table, {way}",
            cases=found.rows,
            median_error=found.median_error,
            p90_error=found.p90_error,
            bias=0.0,
            worst="of the rows it was fitted to",
        )
        for way, found in table.ways.items()
    ]
    return checks


Case = tuple[str, float, float]
"""Who beside whom, the assumed and the measured slowdown."""


def _shipped_pairs(table: InterferenceTable, runs: Sequence[GroupSlowdowns]) -> AssumptionCheck:
    family = family_of(table.gpu)
    shipped = measured(family) if family in FILES else {}
    cases: list[Case] = []
    for run in runs:
        names = [table.workloads[key].name for key in run.workloads if key in table.workloads]
        if len(names) == len(run.workloads) == 2:
            for i, pair in enumerate(((names[0], names[1]), (names[1], names[0]))):
                if pair in shipped:
                    cases.append((" beside ".join(pair), 1.0 / shipped[pair], run.slowdowns[i]))
    return _judge(f"Shipped pairs of {family or 'this GPU'}, time-sliced", cases)


def _slices(workloads: Iterable[WorkloadAlone]) -> list[Case]:
    found: list[Case] = []
    for job in workloads:
        activity = _true_activity(job)
        for profile, speed in job.slice_speeds.items():
            if activity is not None and mig_slices(profile) in SLICES:
                assumed = 1.0 / slice_speed(activity, f"GPU/{profile}")
                found.append((f"{job.name} on {profile}", assumed, 1.0 / speed))
    return found


def _true_activity(job: WorkloadAlone | None) -> TrueActivity | None:
    """What the simulator needs of a job; None where its SM activity is not known."""
    if job is None or job.smact is None:
        return None
    return TrueActivity(job.name, job.smact, job.smocc, job.drama, None, job.memory_bytes)


def _cases(run: GroupSlowdowns, assumed: Sequence[float], workloads: Mapping[str, WorkloadAlone]) -> list[Case]:
    names = [workloads[key].name if key in workloads else key for key in run.workloads]
    return [
        (f"{name} in {' + '.join(names)}", guess, slowdown)
        for name, guess, slowdown in zip(names, assumed, run.slowdowns, strict=True)
    ]


def _judge(assumption: str, cases: Sequence[Case]) -> AssumptionCheck:
    if not cases:
        return AssumptionCheck(assumption=assumption, cases=0)
    errors = [(guess / slowdown - 1.0, who, guess, slowdown) for who, guess, slowdown in cases]
    sizes = sorted(abs(error) for error, *_ in errors)
    _, who, guess, slowdown = max(errors, key=lambda found: abs(found[0]))
    return AssumptionCheck(
        assumption=assumption,
        cases=len(errors),
        median_error=stats.median(sizes),
        p90_error=stats.quantile(sizes, 0.9),
        bias=stats.mean([error for error, *_ in errors]),
        worst=f"{who}: {guess:.2f} assumed, {slowdown:.2f} measured",
    )
