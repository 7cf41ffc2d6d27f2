"""What no schedule beats: makespan, mean JCT and both at once, with the slowdown bound, arrivals and free moves.

    python -m benchmarks.scheduler.relaxation [--quick] [--bootstraps 40] [--step 400] [--write]

Bootstraps of t1 on 4 x A100-40GB as in `quality`, and a slowdown bound of 1.5.

A linear program says how long which set of jobs (at most four, which fit a GPU's memory, at the simulator's speeds) is
on a GPU in each span of time. Everything else is free: jobs are stopped and moved at no cost and in no time, GPU time
is divided at will, jobs of several GPUs are independent work on each of them, and all is known from the beginning. Kept
are: no job before it arrives; all of its work done by the end; no job on more GPUs at once than it has; and for 95 % of
the jobs at most 1.5 times their time alone on GPUs, where the exemption may be divided over jobs, too.

A job ends no earlier than half of its work after the mean time of its work, and no earlier than it has been on its GPUs
for as long as it was (`relaxed_schedule`). So no schedule has a lower mean JCT than the program. Sets are generated as
they are priced in among all sets; what is left is subtracted from the dual, so that each figure is a bound even where
the program was not solved to its end. The least mean JCT is that of schedules no longer than exclusive use. The least
makespan is the larger of the program's and the latest of arrival plus run time of a job.

The search is `reassignment`: it knows durations, memory and speeds of the jobs that have arrived, not those to come.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks._lib.results import add_write_option, today, version, write_result
from benchmarks.scheduler.move_limits import MOVE_S, RULES, outcome_of, policy_run
from benchmarks.scheduler.quality import SEED
from benchmarks.scheduler.reassignment import Outcome, replay
from benchmarks.scheduler.relaxed_schedule import BOUND, JobSets, RelaxedSchedule
from cotenant.sim import cluster, traces
from cotenant.sim.cluster import Cluster
from cotenant.sim.interference import standard
from cotenant.sim.metrics import SimMetrics, metrics_of
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import Trace
from cotenant.sim.traces.transforms import resampled

GPUS = "4xA100-40GB"
MAKESPANS = (0.0,)
"""Limits of makespan against exclusive use under which the least mean JCT is computed."""
GOALS = (-0.24, -0.66)
SEARCHES = [rule for rule in RULES if rule.hysteresis < 1.0]


class Limits(NamedTuple):
    """Against exclusive use: the least makespan, and the least mean JCT by limit of makespan."""

    makespan: float
    jct: Mapping[float, float]


def limits_of(
    trace: Trace, gpus: Cluster, base: SimMetrics, makespans: Sequence[float] = MAKESPANS, step_s: float = 400.0
) -> Limits:
    """The limits of one trace."""
    sets = JobSets(trace, gpus, standard())
    shortest = RelaxedSchedule(trace, gpus, sets, step_s, None).solve()
    ends_s = max(at_s + s for at_s, s in zip(trace.submit_s, trace.duration_s, strict=True))
    least_s = max(ends_s, shortest.bound)
    mean_submit_s = statistics.mean(trace.submit_s)
    jct: dict[float, float] = {}
    for change in makespans:
        limit_s = max((1.0 + change) * base.makespan_s, least_s)
        solved = RelaxedSchedule(trace, gpus, sets, step_s, limit_s).solve()
        jct[change] = (solved.bound - mean_submit_s) / base.jct_mean_s - 1.0
    return Limits(least_s / base.makespan_s - 1.0, jct)


def row(name: str, outcomes: Sequence[Outcome], baseline: Sequence[SimMetrics]) -> str:
    """Means over the bootstraps against exclusive use."""
    pairs = list(zip(outcomes, baseline, strict=True))
    makespan = statistics.mean(outcome.makespan_s / base.makespan_s for outcome, base in pairs) - 1.0
    jct = statistics.mean(outcome.jct_mean_s / base.jct_mean_s for outcome, base in pairs) - 1.0
    within = statistics.mean(outcome.within for outcome, _ in pairs)
    return f"| {name} | {makespan:+.1%} | {jct:+.1%} | {within:.0%} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one bootstrap, in spans of 2,000 s")
    parser.add_argument("--bootstraps", type=int, default=40, help="number of bootstraps (default: %(default)s)")
    parser.add_argument("--step", type=float, default=400.0, help="longest span in seconds (default: %(default)s)")
    add_write_option(parser)
    args = parser.parse_args()
    count, step_s = (1, 2000.0) if args.quick else (args.bootstraps, args.step)
    gpus = cluster.parse(GPUS)
    drawn = [resampled(traces.load("t1"), seed=SEED + number) for number in range(count)]
    baseline = [metrics_of(simulate(trace, gpus, "exclusive")) for trace in drawn]
    found = []
    for number, (trace, base) in enumerate(zip(drawn, baseline, strict=True)):
        began_s = time.perf_counter()
        found.append(limits_of(trace, gpus, base, step_s=step_s))
        print(number, found[-1], f"{time.perf_counter() - began_s:.0f} s", flush=True)
    least = statistics.mean(limits.makespan for limits in found)
    jct = {change: statistics.mean(limits.jct[change] for limits in found) for change in MAKESPANS}
    moved, still = ([outcome_of(policy_run(trace, gpus, share)) for trace in drawn] for share in (1.0, 0.0))
    lines = [
        "| schedule | makespan | mean JCT | within 1.5 |",
        "| --- | ---: | ---: | ---: |",
        f"| no schedule beats | {least:+.1%} | {jct[0.0]:+.1%} | 95% |",
        f"| the goal, all movable at {MOVE_S:.0f} s | {GOALS[0]:+.0%} | {GOALS[1]:+.0%} | 95% |",
        *[
            row(f"search, {rule.name}", [replay(trace, gpus, rule, BOUND) for trace in drawn], baseline)
            for rule in SEARCHES
        ],
        row("`marginal-gain`, all movable", moved, baseline),
        row("`marginal-gain`, none movable", still, baseline),
    ]
    possible = sum(limits.makespan <= GOALS[0] for limits in found)
    beyond = sum(limits.jct[0.0] > GOALS[1] for limits in found)
    lines += [
        "",
        f"{possible} of {count} bootstraps have a least makespan of {GOALS[0]:+.0%} or less. In {beyond} of {count} no",
        f"schedule reaches {GOALS[1]:+.0%} of mean JCT.",
    ]
    print("\n".join(lines))
    if args.write:
        head = [
            "# What no schedule beats on t1",
            "",
            f"{today()}, {platform.machine()}, {platform.python_version()}, cotenant {version('cotenant')}.",
            f"Command: `python -m benchmarks.scheduler.relaxation --bootstraps {count} --step {step_s:g} --write`.",
            "",
            *"\n\n".join((__doc__ or "").split("\n\n")[2:]).splitlines(),
            "",
        ]
        write_result("relaxation", "\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    main()
