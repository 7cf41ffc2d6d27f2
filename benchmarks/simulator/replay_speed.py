"""How fast traces are replayed, beside a simulator that ticks.

    python -m benchmarks.simulator.replay_speed [--quick] [--write] [--data FOLDER] [--repeat 5]

R1: the 82,247 jobs of Philly on its 552 servers, exclusive, first come, first served. R2: the same on 600 GPUs, up to
four jobs on one (`most-memory` with backfill and a history), slowing each other down. R3: every job ten times, on
25,000 GPUs, as R2. R4: the 60 jobs of CARMA's t1 on 4 GPUs, 20 runs over all policies. Each runs in its own process, so
that memory is its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks._lib.results import add_write_option, commit, today, write_result
from benchmarks.simulator.ticking import Node, replay
from cotenant.scheduling import policies
from cotenant.sim import cluster, traces
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import Trace, from_zero
from cotenant.sim.traces import transforms

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "traces"
PHILLY_GPUS = "321*2xP100-12GB,231*8xP40-24GB"
SHARING = "most-memory"
TICKED = (40_000, 48_000)
TICKED_SERVERS = 135
QUICK_JOBS = 4000

# Seconds: what must be reached, what is aimed at.
GOALS = {"R1": (10.0, 2.0), "R2": (30.0, 5.0), "R3": (300.0, 60.0), "R4": (10.0, 2.0)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_JOBS} jobs, and no R3")
    add_write_option(parser)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of philly_jobs.csv.gz")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each, of which the median counts")
    parser.add_argument("--only", help="one of R1 to R4, and `ticks`; prints JSON")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(one(args.only, args.data, quick=args.quick)))
        return 0
    if not (args.data / "philly_jobs.csv.gz").is_file():
        print(f"skipped: no Philly trace in `{args.data}`; say --data FOLDER")
        return 0
    report = "\n".join(lines(args))
    print(report)
    if args.write:
        write(report, quick=args.quick)
    return 0


def one(name: str, data: Path, *, quick: bool) -> dict[str, float]:
    """Seconds, jobs and memory of one benchmark, in this process."""
    if name == "R4":
        return run_r4()
    trace = traces.load(str(data / "philly_jobs.csv.gz"))
    if name == "ticks":
        return run_ticks(cut(trace, *TICKED))
    if quick:
        trace = transforms.first_jobs(trace, QUICK_JOBS)
    if name == "R1":
        return timed(trace, PHILLY_GPUS, "exclusive")
    made = transforms.assign(trace)
    if name == "R3":
        made = transforms.repeated(made, 10)
    gpus = 25_000 if name == "R3" else 600
    return timed(made, f"{gpus}xA100-40GB", SHARING, max_jobs=4)


def cut(trace: Trace, first: int, end: int) -> Trace:
    """Those jobs, from the submission of the first on."""
    return trace.derived(from_zero(trace[number] for number in range(first, end)))


def timed(trace: Trace, gpus: str, policy: str, **options: object) -> dict[str, float]:
    """What is kept of a run; its seconds are those of the processor, for the machine is shared."""
    began_s = time.process_time()
    run = simulate(trace, cluster.parse(gpus), policy, options=options)
    seconds = time.process_time() - began_s
    waits = [start - submit for start, submit in zip(run.columns.start_s, run.trace.submit_s, strict=True)]
    return {
        "seconds": seconds,
        "wall_s": run.wall_s,
        "jobs": len(run.trace),
        "ended": run.completed,
        "events": run.event_count,
        "decisions": run.decisions,
        "mean_wait_h": statistics.fmean(waits) / 3600,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def run_r4() -> dict[str, float]:
    """Twenty runs of t1: every policy, over and over."""
    trace, gpus = traces.load("t1"), cluster.parse("4xA100-40GB")
    names = policies.policies()
    simulate(trace, gpus, "most-memory")  # loads tables
    began_s = time.process_time()
    runs = [simulate(trace, gpus, names[number % len(names)]) for number in range(19)]
    seconds = time.process_time() - began_s
    last = timed(trace, "4xA100-40GB", "exclusive")
    return {
        **last,
        "seconds": seconds + last["seconds"],
        "jobs": sum(len(run.trace) for run in runs) + len(trace),
        "ended": sum(run.completed for run in runs) + last["ended"],
    }


def run_ticks(trace: Trace) -> dict[str, float]:
    """The same jobs, ticked through with and without samples, and by ours; all first come, first served."""
    ticked_s, bare_s, ticks, ends_s = 0.0, 0.0, 0, [0.0]
    for sampled in (True, False):
        nodes = [Node(number, 8) for number in range(TICKED_SERVERS)]
        began_s = time.process_time()
        ends_s, ticks = replay(trace, nodes, sampled=sampled)
        spent_s = time.process_time() - began_s
        ticked_s, bare_s = (spent_s, bare_s) if sampled else (ticked_s, spent_s)
    spent = []
    for _ in range(5):
        began_s = time.process_time()
        ours = simulate(trace, cluster.parse(f"{TICKED_SERVERS}*8xP40-24GB"), "exclusive")
        spent.append(time.process_time() - began_s)
    apart = max(abs(a - b) for a, b in zip(ends_s, ours.columns.end_s, strict=True))
    return {
        "seconds": statistics.median(spent),
        "ticked_s": ticked_s,
        "bare_s": bare_s,
        "ticks": ticks,
        "jobs": len(trace),
        "largest_difference_s": apart,
    }


def measure(name: str, args: argparse.Namespace, repeat: int) -> list[dict[str, float]]:
    """The results of `repeat` processes."""
    command = [sys.executable, "-m", "benchmarks.simulator.replay_speed", "--only", name, "--data", str(args.data)]
    command += ["--quick"] if args.quick else []
    found = []
    for number in range(repeat):
        print(f"{name} {number + 1}/{repeat}", file=sys.stderr, flush=True)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout))
    return found


def lines(args: argparse.Namespace) -> list[str]:
    """The tables."""
    names = ["R1", "R2", "R4"] if args.quick else list(GOALS)
    out = [
        "| | jobs | ended | CPU seconds (median) | min to max | floor | goal | jobs/s | mean wait h | MiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        runs = measure(name, args, 1 if name == "R3" else args.repeat)
        seconds = [run["seconds"] for run in runs]
        typical, last, (floor, goal) = statistics.median(seconds), runs[-1], GOALS[name]
        out.append(
            f"| {name} | {last['jobs']:.0f} | {last['ended']:.0f} | {typical:.2f} | {min(seconds):.2f} to "
            f"{max(seconds):.2f} | {floor:g} | {goal:g} | {last['jobs'] / typical:.0f} | {last['mean_wait_h']:.2f} | "
            f"{last['rss_mib']:.0f} |"
        )
    return [*out, "", *beside_ticks(measure("ticks", args, 1)[0])]


def beside_ticks(found: dict[str, float]) -> list[str]:
    """Ours beside a simulator that ticks."""
    jobs, ours_s = found["jobs"], found["seconds"]
    rows = (
        ("ticking, as published", found["ticked_s"]),
        ("ticking, without samples", found["bare_s"]),
        ("ours", ours_s),
    )
    return [
        f"{jobs:.0f} jobs from the middle of Philly on {TICKED_SERVERS} servers of 8 GPUs, exclusive, first come,",
        f"first served, in one process one after the other; {found['ticks']:.0f} simulated seconds. Ends of the three",
        f"differ by at most {found['largest_difference_s']:.1f} s.",
        "",
        "| | CPU seconds | jobs/s | ours is faster by |",
        "| --- | ---: | ---: | ---: |",
        *[f"| {name} | {spent_s:.2f} | {jobs / spent_s:.0f} | {spent_s / ours_s:.0f} x |" for name, spent_s in rows],
        "",
        "`ticking.py` says what it does in a tick: it follows the published simulators of Helios and Lucid. Lucid's",
        "own was measured apart at 98 jobs/s on 8,000 jobs of Philly and as many GPUs, on the same kind of machine.",
        "Most of the time goes into a sample of the whole cluster each simulated minute; without these it does less",
        "than any published one.",
    ]


def write(report: str, *, quick: bool) -> None:
    """Keep the report under benchmarks/results."""
    head = [
        f"# Speed of the simulator, {today()}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; {os.cpu_count()} cores, shared, no GPU. Seed 0.",
        "Seconds are those of the processor, one core.",
        f"Repeat with `python -m benchmarks.simulator.replay_speed --write{' --quick' if quick else ''}`.",
        "Trace: Philly as Pollux kept it (82,247 jobs); workloads drawn for R2 and R3 by run time, seed 0.",
        "",
    ]
    write_result("simulator", "\n".join([*head, report, ""]))


if __name__ == "__main__":
    sys.exit(main())
