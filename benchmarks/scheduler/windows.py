"""`marginal-gain` on many windows of Philly: means over draws, where one slice is a single draw.

    python -m benchmarks.scheduler.windows [--windows 5] [--quick] [--write]

Needs `philly_jobs.csv.gz` of the shared data. A window is 300 jobs in a row of a virtual cluster, at least eight of
them gangs, from a start that is drawn; its jobs get measured workloads of similar duration. The servers have eight
A100-40GB each, as many as bring 1.2 times the work that they can do alone, at most ten. Four virtual clusters are the
half that rules are chosen on, four others the half that confirms them. Memory is known, no history, a slowdown bound of
1.5; none, half and all of the jobs can be moved, 30 s to save and 30 s to start.

Jobs of a window share few workloads, and one that is misjudged is misjudged in all its jobs: the share within 1.5 of a
single window moves by 20 points with its neighbors.
"""

from __future__ import annotations

import argparse
import math
import platform
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks._lib.results import add_write_option, commit, today, write_result
from benchmarks.scheduler.slices import SHARED, trace_of
from cotenant.sim import cluster
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.metrics import SimMetrics, metrics_of
from cotenant.sim.simulate import SimulationResult, simulate
from cotenant.sim.trace import Trace
from cotenant.sim.traces import transforms

HALVES = {
    "chosen on": ("6c71a0", "6214e9", "103959", "ee9e8c"),
    "confirmed on": ("11cb48", "b436b2", "0e4a51", "7f04ca"),
}
JOBS = 300
MIN_GANGS = 8
GPUS = 8
MAX_SERVERS = 10
LOAD = 1.2
TRIES = 60
BOUND = 1.5
COLUMNS = ("makespan", "mean JCT", "P95 JCT", "within 1.5", "gangs within 1.5", "moves per 60 jobs", "gangs moved")


class Window(NamedTuple):
    """Jobs and the cluster that they fill."""

    trace: Trace
    gpus: Cluster


class Outcome(NamedTuple):
    """A run, and the same window under exclusive use."""

    metrics: SimMetrics
    base: SimMetrics
    slowdowns: Sequence[float]
    is_gang: Sequence[bool]
    moves: Sequence[int]


def windows_of(virtual_cluster: str, count: int) -> Iterator[Window]:
    """Up to `count` windows of a virtual cluster, each from a seed of its own."""
    whole = trace_of(virtual_cluster)
    for number in range(count):
        for seed in range(100 * number, 100 * number + TRIES):
            window = drawn(whole, seed)
            if window is not None:
                yield window
                break


def drawn(whole: Trace, seed: int) -> Window | None:
    """The window that a seed draws; None if it has too few gangs, or needs too many servers."""
    start = random.Random(seed).randrange(0, len(whole) - JOBS + 1)
    first_s = whole.submit_s[start]
    jobs = [replace(whole[place], submit_s=whole.submit_s[place] - first_s) for place in range(start, start + JOBS)]
    trace = transforms.assign(whole.derived(jobs, note=f"{JOBS} jobs from {start} on"), seed=seed)
    work_s = sum(seconds * gpus for seconds, gpus in zip(trace.duration_s, trace.gpus, strict=True))
    servers = max(2, math.ceil(max(trace.gpus) / GPUS), round(work_s / max(1.0, trace.submit_s[-1]) / LOAD / GPUS))
    if servers > MAX_SERVERS or sum(gpus > 1 for gpus in trace.gpus) < MIN_GANGS:
        return None
    return Window(trace, cluster.parse(f"{servers}*{GPUS}xA100-40GB"))


def outcome_of(window: Window, base: SimMetrics, share: float) -> Outcome:
    config = SimulationConfig(movable_share=share)
    run: SimulationResult = simulate(window.trace, window.gpus, "marginal-gain", max_slowdown=BOUND, config=config)
    columns = run.columns
    rows = zip(columns.run_s, columns.lost_s, columns.alone_s, strict=True)
    slowdowns = [(run_s - lost_s) / alone_s for run_s, lost_s, alone_s in rows]
    moves = [attempts - 1 - ooms for attempts, ooms in zip(columns.attempts, columns.ooms, strict=True)]
    return Outcome(metrics_of(run), base, slowdowns, [gpus > 1 for gpus in window.trace.gpus], moves)


def row(found: Sequence[Outcome]) -> str:
    """The cells of `COLUMNS`: means over windows, gangs over all of them."""
    cells = []
    for name in ("makespan_s", "jct_mean_s", "jct_p95_s"):
        changes = [getattr(outcome.metrics, name) / getattr(outcome.base, name) - 1.0 for outcome in found]
        cells.append(f"{statistics.mean(changes):+.1%}")
    cells.append(f"{statistics.mean(outcome.metrics.within_bound for outcome in found):.1%}")
    gangs = [
        (slowdown, moves)
        for outcome in found
        for slowdown, moves, is_gang in zip(outcome.slowdowns, outcome.moves, outcome.is_gang, strict=True)
        if is_gang
    ]
    cells.append(f"{sum(slowdown <= BOUND for slowdown, _ in gangs)} of {len(gangs)}")
    cells.append(f"{statistics.mean(sum(outcome.moves) * 60 / len(outcome.moves) for outcome in found):.1f}")
    cells.append(str(sum(moves > 0 for _, moves in gangs)))
    return " | ".join(cells)


def table(clusters: Sequence[str], count: int, shares: Sequence[float]) -> Iterator[str]:
    """One row per share of jobs that can be moved."""
    windows = [window for name in clusters for window in windows_of(name, count)]
    bases = [metrics_of(simulate(window.trace, window.gpus, "exclusive")) for window in windows]
    yield f"{len(windows)} windows of {', '.join(clusters)}."
    yield ""
    yield f"| can be moved | {' | '.join(COLUMNS)} |"
    yield "| --- " * (len(COLUMNS) + 1) + "|"
    for share in shares:
        found = [outcome_of(window, base, share) for window, base in zip(windows, bases, strict=True)]
        yield f"| {share:.0%} | {row(found)} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=5, help="of each virtual cluster (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one window of two virtual clusters, nothing moves")
    add_write_option(parser)
    args = parser.parse_args()
    if not SHARED.is_file():
        print(f"skipped: no Philly trace at `{SHARED}`")
        return 0
    lines = []
    for title, clusters in HALVES.items():
        lines += [f"## The half that rules are {title}", ""]
        some = (clusters[:1], 1, (0.0,)) if args.quick else (clusters, args.windows, (0.0, 0.5, 1.0))
        for line in table(*some):
            lines.append(line)
            print(line, flush=True)
        lines.append("")
    if args.write:
        head = [
            f"# `marginal-gain` on windows of Philly, {today()}",
            "",
            f"Commit {commit()}; {platform.machine()}, {platform.python_version()}; simulated.",
            f"Repeat with `python -m benchmarks.scheduler.windows --windows {args.windows} --write`.",
            "",
            *(__doc__ or "").split("\n\n")[2].splitlines(),
            "",
            "Changes are against exclusive use, means over windows.",
            "",
        ]
        write_result("windows", "\n".join([*head, *lines]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
