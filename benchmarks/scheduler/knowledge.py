"""What knowing better would be worth to `marginal-gain`: the truth in place of its predictions, one kind after another.

    python -m benchmarks.scheduler.knowledge [--bootstraps 40] [--write]

Bootstraps of t1 as in `quality`, on 4 x A100-40GB, memory known, a slowdown bound of 1.5, against exclusive. `as is`
starts without history. Then the policy knows of every job, before it runs: its SM activity; how long it takes alone;
the speeds of any set of jobs, as the simulator has them. `longest first` orders jobs by their GPU time, the longest
first, in place of by due time; it is no option of the policy, since mean JCT pays for it.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from dataclasses import replace

from benchmarks._lib.results import add_write_option, today, version, write_result
from benchmarks.scheduler.quality import SEED, changes
from cotenant.core.gpu import Sharing
from cotenant.core.job import Job
from cotenant.scheduling.placement.policy import JobPredictions
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.scheduling.policies import create
from cotenant.scheduling.prediction.interference import GpuActivity, InterferencePredictor, PriorInterference
from cotenant.sim import cluster, traces
from cotenant.sim.engine.speeds import activity_of
from cotenant.sim.interference import TrueActivity, standard
from cotenant.sim.metrics import SimMetrics, metrics_of
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import Trace
from cotenant.sim.traces.transforms import resampled

COLUMNS = ("makespan", "mean JCT", "P95 JCT", "energy", "within 1.5", "OOM per 60")


class TrueInterference:
    """The simulator's speeds as predictions; a job of unknown workload is slowed down as its activity says."""

    version = 0

    def __init__(self, trace: Trace) -> None:
        self._world = standard()
        self._known = {profile.workload: activity_of(profile) for profile in trace.profiles}

    def slowdowns(self, activities: Sequence[GpuActivity], sharing: Sharing = "time-sliced") -> tuple[float, ...]:
        if len(activities) < 2:
            return (1.0,) * len(activities)
        members = [self._known.get(activity.workload or "") or self._guess(activity) for activity in activities]
        return tuple(1.0 / speed for speed in self._world.speeds(members, sharing=sharing))

    def _guess(self, activity: GpuActivity) -> TrueActivity:
        return TrueActivity(None, activity.smact or 0.5, memory_bytes=activity.memory_bytes)

    def slice_speed(self, workload: str | None, profile: str) -> float | None:  # noqa: ARG002 -- no MIG here
        return None


class Truths:
    """Predictions for the jobs of a trace that are right, of the kinds named in `known`."""

    typical_bytes = ()

    def __init__(self, trace: Trace, known: Sequence[str]) -> None:
        self._trace = trace
        self._known = known
        self.interference: InterferencePredictor = TrueInterference(trace) if "speeds" in known else PriorInterference()

    def activity(self, job: Job) -> GpuActivity:
        profile = self._trace.profiles[self._trace.profile_of[job.id - 1]]
        if "activity" not in self._known:
            return GpuActivity(profile.workload)
        return GpuActivity(profile.workload, profile.smact, memory_bytes=profile.peak_bytes)

    def duration_s(self, job: Job) -> float | None:
        return self._trace.duration_s[job.id - 1] if "durations" in self._known else None

    def demand_bytes(self, _job: Job) -> None:
        return None


def longest_first(job: Job, facts: JobPredictions) -> tuple[float, ...]:
    return (-(facts.duration_s(job) or 0.0) * job.spec.gpus, job.id)


VARIANTS: tuple[tuple[str, Sequence[str] | None, bool], ...] = (
    ("as is", None, False),
    ("activity", ("activity",), False),
    ("activity and durations", ("activity", "durations"), False),
    ("activity and speeds", ("activity", "speeds"), False),
    ("all three", ("activity", "durations", "speeds"), False),
    ("all three, longest first", ("activity", "durations", "speeds"), True),
)


def run(trace: Trace, known: Sequence[str] | None, *, longest: bool) -> SimMetrics:
    policy = create("marginal-gain")
    if longest:
        assert isinstance(policy, Ranked)
        policy = replace(policy, order=longest_first)
    facts = None if known is None else Truths(trace, known)
    return metrics_of(simulate(trace, cluster.parse("4xA100-40GB"), policy, max_slowdown=1.5, facts=facts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstraps", type=int, default=40, help="number of bootstraps (default: %(default)s)")
    add_write_option(parser)
    args = parser.parse_args()
    drawn = [resampled(traces.load("t1"), seed=SEED + i) for i in range(args.bootstraps)]
    gpus = cluster.parse("4xA100-40GB")
    baseline = [metrics_of(simulate(trace, gpus, "exclusive")) for trace in drawn]
    lines = [f"| known before a job runs | {' | '.join(COLUMNS)} |", "| --- " * (len(COLUMNS) + 1) + "|"]
    for name, known, longest in VARIANTS:
        cells = changes([run(trace, known, longest=longest) for trace in drawn], baseline)
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if args.write:
        head = [
            "# What knowing better would be worth, simulated",
            "",
            f"{today()}, {platform.machine()}, {platform.python_version()}, cotenant {version('cotenant')}.",
            f"Command: `python -m benchmarks.scheduler.knowledge --write`. Seed {SEED}.",
            "",
            *(__doc__ or "").split("\n\n")[2].splitlines(),
            "",
        ]
        write_result("knowledge", "\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    main()
