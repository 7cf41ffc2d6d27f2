"""Policies on slices of Philly: thousands of jobs, gangs of up to eight, a cluster that is full, and one that is not.

    python -m benchmarks.scheduler.slices [--write]

Needs `philly_jobs.csv.gz` of the shared data. A slice is the window of a virtual cluster that resembles the whole of it
most; its jobs get measured workloads of like duration (seed 0). GPUs are chosen so that the first three queue, and the
last, all virtual clusters together, hardly does. Policies know true memory, begin without history, and are asked for a
bound of 1.5. One draw each: differences of a few points mean nothing.
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
from cotenant.sim.metrics import metrics_of
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import Trace
from cotenant.sim.traces import transforms

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data" / "traces" / "philly_jobs.csv.gz"
EVERYBODY = "all"
SLICES = (
    ("ee9e8c", 1500, "16*8xA100-40GB"),
    ("6c71a0", 3000, "5*8xA100-40GB"),
    ("6214e9", 3000, "6*8xA100-40GB"),
    (EVERYBODY, 4000, "56*8xA100-40GB"),
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
    args = parser.parse_args()
    lines = ["# Policies on slices of Philly, simulated", ""]
    lines += [
        f"{today()}, {platform.machine()}, {platform.python_version()}, cotenant {version('cotenant')}, seed 0.",
        "",
    ]
    lines += [*(__doc__ or "").split("\n\n")[2].splitlines(), "", "Changes are against exclusive.", ""]
    lines += ["| slice | jobs | GPUs | policy | makespan | mean JCT | P95 JCT | within 1.5 |", "| --- " * 8 + "|"]
    for name, count, text in SLICES:
        lines += rows_of(name, window_of(name, count), cluster.parse(text))
    if args.write:
        write_result("slices", "\n".join([*lines, ""]))


def window_of(virtual_cluster: str, count: int) -> Trace:
    """Jobs of that virtual cluster, with workloads."""
    with gzip.open(SHARED, "rt", newline="") as file:
        titles, *rows = csv.reader(file)
    kept = [row for row in rows if virtual_cluster in (EVERYBODY, row[titles.index("vc")])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"philly-{virtual_cluster}.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([titles, *kept])
        trace = traces.load(str(path))
    return transforms.assign(transforms.window(trace, min(count, len(trace))), seed=0)


def rows_of(name: str, trace: Trace, gpus: cluster.Cluster) -> list[str]:
    """One row a policy."""
    base = metrics_of(simulate(trace, gpus, "exclusive"))
    head = f"| {name} | {len(trace)} | {len(gpus)} |"
    found = [f"{head} exclusive | {base.makespan_s / 3600:.0f} h | {base.jct_mean_s / 3600:.1f} h | - | 100% |"]
    print(found[0], flush=True)
    for policy, options in RUNS:
        told = metrics_of(simulate(trace, gpus, policy, options=options, max_slowdown=1.5))
        changes = [
            getattr(told, metric) / getattr(base, metric) - 1 for metric in ("makespan_s", "jct_mean_s", "jct_p95_s")
        ]
        label = " ".join([policy, *(f"{key}={value}" for key, value in options.items())])
        found.append(
            f"{head} {label} | {' | '.join(f'{change:+.1%}' for change in changes)} | {told.within_bound:.0%} |"
        )
        print(found[-1], flush=True)
    return found


if __name__ == "__main__":
    main()
