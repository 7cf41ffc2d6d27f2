"""Policies on slices of Philly: thousands of jobs, gangs of up to eight GPUs, overloaded clusters and one that is not.

    python -m benchmarks.scheduler.slices [--write] [--moves] [--slices ee9e8c,6c71a0]

Needs `philly_jobs.csv.gz` of the shared data. A slice is the most representative window of a virtual cluster; its jobs
get measured workloads of similar duration (seed 0). GPU counts are chosen so that jobs queue in the first three slices
and hardly in the last one, which has all virtual clusters. Policies know the true memory, start without history, and
run with a slowdown bound of 1.5. Each row is one draw: differences of a few points are noise. With `--moves`:
`marginal-gain` where none, half and all of the jobs can be moved, 30 s to save and 30 s to start.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import platform
import tempfile
from pathlib import Path

from benchmarks._lib.results import add_write_option, today, version, write_result
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.metrics import SimMetrics, metrics_of
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import Trace
from cotenant.sim.traces import transforms

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "traces" / "philly_jobs.csv.gz"
ALL = "all"
SLICES = (
    ("ee9e8c", 1500, "16*8xA100-40GB"),
    ("6c71a0", 3000, "5*8xA100-40GB"),
    ("6214e9", 3000, "6*8xA100-40GB"),
    (ALL, 4000, "56*8xA100-40GB"),
)
RUNS: tuple[tuple[str, dict[str, object]], ...] = (
    ("most-memory", {}),
    ("lucid", {}),
    ("aegis", {}),
    ("marginal-gain", {}),
    ("marginal-gain", {"order": "oldest"}),
    ("marginal-gain", {"order": "least-work"}),
    ("marginal-gain", {"reserve_after_s": 86400.0}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_write_option(parser)
    parser.add_argument("--moves", action="store_true", help="only `marginal-gain` with jobs that can be moved")
    names = [name for name, _, _ in SLICES]
    parser.add_argument("--slices", default=",".join(names), help="only these (default: %(default)s)")
    args = parser.parse_args()
    lines = ["# Policies on slices of Philly, simulated", ""]
    lines += [
        f"{today()}, {platform.machine()}, {platform.python_version()}, cotenant {version('cotenant')}, seed 0.",
        "",
    ]
    lines += [*(__doc__ or "").split("\n\n")[2].splitlines(), "", "Changes are against exclusive.", ""]
    columns = ["slice", "jobs", "GPUs", "policy", "makespan", "mean JCT", "P95 JCT", "within 1.5"]
    columns += ["moves per 60 jobs"] if args.moves else []
    lines += [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for name, count, text in (found for found in SLICES if found[0] in args.slices.split(",")):
        window, gpus = window_of(name, count), cluster.parse(text)
        lines += moved_rows_of(name, window, gpus) if args.moves else rows_of(name, window, gpus)
    if args.write:
        write_result("slices-moves" if args.moves else "slices", "\n".join([*lines, ""]))


def window_of(virtual_cluster: str, count: int) -> Trace:
    """The representative window of the virtual cluster, with workloads assigned."""
    trace = trace_of(virtual_cluster)
    return transforms.assign(transforms.window(trace, min(count, len(trace))), seed=0)


def trace_of(virtual_cluster: str) -> Trace:
    """All jobs of the virtual cluster."""
    with gzip.open(SHARED, "rt", newline="") as file:
        titles, *rows = csv.reader(file)
    selected = [row for row in rows if virtual_cluster in (ALL, row[titles.index("vc")])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"philly-{virtual_cluster}.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([titles, *selected])
        return traces.load(str(path))


def rows_of(name: str, trace: Trace, gpus: cluster.Cluster) -> list[str]:
    """One table row per policy."""
    base = metrics_of(simulate(trace, gpus, "exclusive"))
    head = f"| {name} | {len(trace)} | {len(gpus)} |"
    found = [f"{head} exclusive | {base.makespan_s / 3600:.0f} h | {base.jct_mean_s / 3600:.1f} h | - | 100% |"]
    print(found[0], flush=True)
    for policy, options in RUNS:
        metrics = metrics_of(simulate(trace, gpus, policy, options=options, max_slowdown=1.5))
        label = " ".join([policy, *(f"{key}={value}" for key, value in options.items())])
        found.append(f"{head} {label} | {changes(metrics, base)} |")
        print(found[-1], flush=True)
    return found


def moved_rows_of(name: str, trace: Trace, gpus: cluster.Cluster) -> list[str]:
    """One table row per share of jobs that can be moved."""
    base = metrics_of(simulate(trace, gpus, "exclusive"))
    head = f"| {name} | {len(trace)} | {len(gpus)} |"
    hours = f"{base.makespan_s / 3600:.0f} h | {base.jct_mean_s / 3600:.1f} h"
    found = [f"{head} exclusive | {hours} | - | 100% | - |"]
    print(found[0], flush=True)
    for share in (0.0, 0.5, 1.0):
        run = simulate(trace, gpus, "marginal-gain", max_slowdown=1.5, config=SimulationConfig(movable_share=share))
        moves = sum(run.columns.attempts) - len(trace) - sum(run.columns.ooms)
        label = f"marginal-gain, {share:.0%} movable"
        found.append(f"{head} {label} | {changes(metrics_of(run), base)} | {moves * 60 / len(trace):.1f} |")
        print(found[-1], flush=True)
    return found


def changes(metrics: SimMetrics, base: SimMetrics) -> str:
    """The cells from `makespan` to `within 1.5`."""
    ratios = [getattr(metrics, title) / getattr(base, title) for title in ("makespan_s", "jct_mean_s", "jct_p95_s")]
    return f"{' | '.join(f'{ratio - 1:+.1%}' for ratio in ratios)} | {metrics.within_bound:.0%}"


if __name__ == "__main__":
    main()
