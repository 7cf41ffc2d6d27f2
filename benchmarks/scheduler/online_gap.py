"""What keeps `marginal-gain` from the clairvoyant search that keeps the bound, where nothing moves.

    python -m benchmarks.scheduler.online_gap [--quick] [--write] [--bootstraps 40] [--seed 1000] [--history]

Bootstraps of t1 as in `quality`, on 4 x A100-40GB, a slowdown bound of 1.5, without history at the beginning, against
exclusive. Each row knows or may do more than the one above, and `step` is the mean of the differences in points, with
its standard error: schedules are chaotic, so that a change that gains nothing is seldom 0.

The policy with our estimates; with memory known; with activity and speeds known, too. Greedy: the same order and least
gain without the limits that guard against wrong predictions (sum of SM activities, weights of sets of three), in
`lookahead`. Looking ahead: see there, with durations by the runs that have ended, then with all known. The search knows
the arrivals: it takes the best of 20 schedules for this trace in hindsight, by makespan alone; no set slows one of its
jobs down by more than 1.5.

With `--history` instead: our estimates, and what was learned in three other bootstraps, from SM activity alone or from
the steps that jobs report, too. `step` is against the first row.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks._lib.results import add_write_option, today, version, write_result
from benchmarks.scheduler.knowledge import GPUS, TrueHistory
from benchmarks.scheduler.lookahead import LookaheadPolicy, Rule
from benchmarks.scheduler.quality import SEED, TRIES
from cotenant.scheduling.policies import create
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.limits.oracle_search import best_found
from cotenant.sim.metrics import SimMetrics, metrics_of
from cotenant.sim.simulate import SimulationResult, simulate
from cotenant.sim.trace import Trace
from cotenant.sim.traces.transforms import resampled

BOUND = 1.5
GREEDY = Rule("greedy, without guards", orders=("due",), min_gains=(0.3,))
RULES = (
    GREEDY,
    Rule("looking ahead, durations as learned"),
    Rule("looking ahead, durations known", knows_durations=True),
)
COLUMNS = ("makespan", "step", "mean JCT", "step", "within 1.5")

Scheduler = Callable[[Trace], SimulationResult]


def policy(estimator: str, *known: str) -> Scheduler:
    """`marginal-gain` with memory by this estimator, and what else it knows."""
    gpus = cluster.parse(GPUS)

    def run(trace: Trace) -> SimulationResult:
        history = TrueHistory(trace, known)
        return simulate(trace, gpus, create("marginal-gain"), estimator=estimator, max_slowdown=BOUND, history=history)

    return run


def with_history(traces_before: int, *, reports_steps: bool) -> Scheduler:
    """`marginal-gain` with our estimates, and the history of so many bootstraps with seeds of their own."""
    gpus, config = cluster.parse(GPUS), SimulationConfig(reports_steps=reports_steps)

    def run(trace: Trace) -> SimulationResult:
        history = WorkloadHistory()
        common: dict[str, Any] = {"estimator": "cotenant", "max_slowdown": BOUND, "config": config}
        for number in range(traces_before):
            seed = zlib.crc32(repr((number, *trace.profile_of)).encode())
            simulate(resampled(traces.load("t1"), seed=seed), gpus, "marginal-gain", history=history, **common)
            # The jobs of the next trace have the same numbers: forget which were learned from, not what.
            history = WorkloadHistory.restored({**history.state(), "learned": {}})
        return simulate(trace, gpus, "marginal-gain", history=history, **common)

    return run


def lookahead(rule: Rule) -> Scheduler:
    """A rule of `lookahead`."""
    gpus = cluster.parse(GPUS)
    return lambda trace: simulate(trace, gpus, LookaheadPolicy(trace, gpus, rule, bound=BOUND), learn=False)


def search(trace: Trace) -> SimulationResult:
    """The best of some schedules, in hindsight."""
    return best_found(trace, cluster.parse(GPUS), tries=TRIES, seed=0, max_slowdown=BOUND).run


SCHEDULERS: tuple[tuple[str, Scheduler], ...] = (
    ("`marginal-gain`, our estimates", policy("cotenant")),
    ("the same, memory known", policy("oracle")),
    ("the same, activity and speeds known", policy("oracle", "activity", "speeds")),
    *((rule.name, lookahead(rule)) for rule in RULES),
    ("clairvoyant search", search),
)

WITH_HISTORY: tuple[tuple[str, Scheduler], ...] = (
    ("none", policy("cotenant")),
    ("of three traces, by activity", with_history(3, reports_steps=False)),
    ("none, jobs report steps", with_history(0, reports_steps=True)),
    ("of three traces, jobs report steps", with_history(3, reports_steps=True)),
)


def step(values: Sequence[float], before: Sequence[float] | None) -> str:
    """The mean difference in points, with its standard error."""
    if before is None:
        return "-"
    differences = [100.0 * (value - other) for value, other in zip(values, before, strict=True)]
    error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else float("nan")
    return f"{statistics.mean(differences):+.1f} ± {error:.1f}"


def table(
    drawn: Sequence[Trace], schedulers: Sequence[tuple[str, Scheduler]], *, title: str, chained: bool
) -> list[str]:
    """One row per scheduler; steps are against the row above if `chained`, else against the first."""
    lines = [f"| {title} | {' | '.join(COLUMNS)} |", "| --- " + "| ---: " * len(COLUMNS) + "|"]
    baseline = [metrics_of(simulate(trace, cluster.parse(GPUS), "exclusive")) for trace in drawn]
    makespans: list[float] | None = None
    jcts: list[float] | None = None
    for name, scheduler in schedulers:
        found: list[SimMetrics] = [metrics_of(scheduler(trace)) for trace in drawn]
        pairs = list(zip(found, baseline, strict=True))
        now = [metrics.makespan_s / base.makespan_s - 1.0 for metrics, base in pairs]
        jcts_now = [metrics.jct_mean_s / base.jct_mean_s - 1.0 for metrics, base in pairs]
        cells = [f"{statistics.mean(now):+.1%}", step(now, makespans)]
        cells += [f"{statistics.mean(jcts_now):+.1%}", step(jcts_now, jcts)]
        cells.append(f"{statistics.mean(metrics.within_bound for metrics in found):.1%}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
        if chained or makespans is None:
            makespans, jcts = now, jcts_now
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two bootstraps")
    parser.add_argument("--bootstraps", type=int, default=40, help="number of bootstraps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first bootstrap (default: %(default)s)")
    parser.add_argument("--history", action="store_true", help="only `marginal-gain` with a history of other traces")
    add_write_option(parser)
    args = parser.parse_args()
    count = 2 if args.quick else args.bootstraps
    drawn = [resampled(traces.load("t1"), seed=args.seed + i) for i in range(count)]
    if args.history:
        lines = table(drawn, WITH_HISTORY, title="history", chained=False)
    else:
        lines = table(drawn, SCHEDULERS, title="schedule", chained=True)
    if args.write:
        options = f"--bootstraps {count} --seed {args.seed}{' --history' if args.history else ''}"
        head = [
            "# What keeps the policy from the clairvoyant search, simulated",
            "",
            f"{today()}, {platform.machine()}, {platform.python_version()}, cotenant {version('cotenant')}.",
            f"Command: `python -m benchmarks.scheduler.online_gap {options} --write`.",
            "",
            *"\n\n".join((__doc__ or "").split("\n\n")[2:]).splitlines(),
            "",
        ]
        write_result("online-gap-history" if args.history else "online-gap", "\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    main()
