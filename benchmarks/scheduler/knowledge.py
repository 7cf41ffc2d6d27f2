"""What knowing better would be worth to `marginal-gain`: the truth in place of its predictions, one kind after another.

    python -m benchmarks.scheduler.knowledge [--bootstraps 40] [--write]

Bootstraps of t1 as in `quality`, on 4 x A100-40GB, a slowdown bound of 1.5, against exclusive. Memory is that of our
estimates, or known. `as is` starts without history. Then the policy knows of every job, before it runs: its SM
activity; how long it takes alone; the speeds of any set of jobs, as the simulator has them. A move takes 30 s to save
and 30 s to start, or nothing where it is free. `no bound` drops the slowdown bound, not what a policy must gain.
`longest first` orders jobs by their GPU time, the longest first, in place of by due time; it is no option of the
policy, since mean JCT pays for it.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks._lib.results import add_write_option, today, version, write_result
from benchmarks.scheduler.quality import SEED, changes
from cotenant.core.gpu import Sharing
from cotenant.core.job import Job
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.scheduling.policies import create
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.prediction.interference import GpuActivity, LearnedInterference
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.speeds import activity_of
from cotenant.sim.interference import TrueActivity, standard
from cotenant.sim.metrics import SimMetrics, metrics_of
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import Trace
from cotenant.sim.traces.transforms import resampled

COLUMNS = ("makespan", "mean JCT", "P95 JCT", "energy", "within 1.5", "OOM per 60")
GPUS = "4xA100-40GB"
NO_BOUND = 50.0


class TrueInterference(LearnedInterference):
    """The simulator's speeds as predictions; a job of unknown workload is slowed down as its activity says."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._world = standard()
        self._known = {profile.workload: activity_of(profile) for profile in trace.profiles}

    def slowdowns(self, activities: Sequence[GpuActivity], sharing: Sharing = "time-sliced") -> tuple[float, ...]:
        if len(activities) < 2:
            return (1.0,) * len(activities)
        members = [self._known.get(activity.workload or "") or self._guess(activity) for activity in activities]
        return tuple(1.0 / speed for speed in self._world.speeds(members, sharing=sharing))

    def _guess(self, activity: GpuActivity) -> TrueActivity:
        return TrueActivity(None, activity.smact or 0.5, memory_bytes=activity.memory_bytes)


class TrueHistory(WorkloadHistory):
    """Predictions for the jobs of a trace that are right, of the kinds named in `known`; else what was learned."""

    def __init__(self, trace: Trace, known: Sequence[str]) -> None:
        super().__init__()
        self._trace = trace
        self._known = known
        if "speeds" in known:
            self.interference = TrueInterference(trace)

    def activity(self, job: Job) -> GpuActivity:
        if "activity" not in self._known:
            return super().activity(job)
        profile = self._trace.profiles[self._trace.profile_of[job.id - 1]]
        return GpuActivity(profile.workload, profile.smact, profile.smocc, profile.drama, profile.peak_bytes)

    def duration_s(self, job: Job) -> float | None:
        return self._trace.duration_s[job.id - 1] if "durations" in self._known else super().duration_s(job)


def longest_first(job: Job, facts: JobPredictions) -> tuple[float, ...]:
    return (-(facts.duration_s(job) or 0.0) * job.spec.gpus, job.id)


class Variant(NamedTuple):
    """What a policy knows and may do; see the docstring of the module."""

    name: str
    known: Sequence[str] = ()
    share: float = 0.0
    is_free: bool = False
    bound: float = 1.5
    longest: bool = False


KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("as is", ()),
    ("activity", ("activity",)),
    ("durations", ("durations",)),
    ("speeds", ("speeds",)),
    ("activity and durations", ("activity", "durations")),
    ("activity and speeds", ("activity", "speeds")),
    ("all three", ("activity", "durations", "speeds")),
)
ALL = KINDS[-1][1]
VARIANTS = (
    *(Variant(name, known, share) for name, known in KINDS for share in (0.0, 1.0)),
    Variant("all three, moves are free", ALL, 1.0, is_free=True),
    Variant("all three, no bound", ALL, 1.0, bound=NO_BOUND),
    Variant("all three, longest first", ALL, longest=True),
    Variant("all three, longest first", ALL, 1.0, longest=True),
)


def run(trace: Trace, variant: Variant, estimator: str) -> tuple[SimMetrics, float]:
    """The metrics of a run, and its moves per 60 jobs."""
    policy = create("marginal-gain")
    if variant.longest:
        assert isinstance(policy, Ranked)
        policy = replace(policy, order=longest_first)
    part_s = 0.0 if variant.is_free else 30.0
    result = simulate(
        trace,
        cluster.parse(GPUS),
        policy,
        estimator=estimator,
        max_slowdown=variant.bound,
        config=SimulationConfig(movable_share=variant.share, save_s=part_s, startup_s=part_s),
        history=TrueHistory(trace, variant.known),
    )
    moves = sum(result.columns.attempts) - len(trace) - sum(result.columns.ooms)
    return metrics_of(result), moves * 60 / len(trace)


def table(drawn: Sequence[Trace], estimator: str) -> list[str]:
    """What each variant reaches with memory by this estimator."""
    lines = [
        f"## Memory by `{estimator}`",
        "",
        f"| known before a job runs | movable | {' | '.join(COLUMNS)} | moves |",
    ]
    lines.append("| --- " * (len(COLUMNS) + 3) + "|")
    baseline = [metrics_of(simulate(trace, cluster.parse(GPUS), "exclusive")) for trace in drawn]
    for variant in VARIANTS:
        runs = [run(trace, variant, estimator) for trace in drawn]
        cells = changes([metrics for metrics, _ in runs], baseline)
        moves = sum(count for _, count in runs) / len(runs)
        lines.append(f"| {variant.name} | {variant.share:.0%} | {' | '.join(cells)} | {moves:.1f} |")
        print(estimator, lines[-1], flush=True)
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstraps", type=int, default=40, help="number of bootstraps (default: %(default)s)")
    add_write_option(parser)
    args = parser.parse_args()
    drawn = [resampled(traces.load("t1"), seed=SEED + i) for i in range(args.bootstraps)]
    lines = [line for estimator in ("cotenant", "oracle") for line in table(drawn, estimator)]
    if args.write:
        head = [
            "# What knowing better would be worth, simulated",
            "",
            f"{today()}, {platform.machine()}, {platform.python_version()}, cotenant {version('cotenant')}.",
            f"Command: `python -m benchmarks.scheduler.knowledge --bootstraps {len(drawn)} --write`. Seed {SEED}.",
            "",
            *(__doc__ or "").split("\n\n")[2].splitlines(),
            "",
        ]
        write_result("knowledge", "\n".join([*head, *lines]))


if __name__ == "__main__":
    main()
