"""Speed of the simulator, compared with a time-stepped one.

    python -m benchmarks.simulator.replay_speed [--quick] [--write] [--data FOLDER] [--repeat 5]

R1: the 82,247 jobs of Philly on its 552 servers, exclusive, FIFO. R2: the same jobs on 600 GPUs with interference, up
to four jobs per GPU (`most-memory` with backfill and a history). R3: as R2 with every job ten times, on 25,000 GPUs.
R4: the 60 jobs of CARMA's t1 on 4 GPUs, 20 runs over all policies. Each benchmark runs in a process of its own, so that
peak memory is separate.
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

# CPU seconds: (required, goal).
GOALS = {"R1": (10.0, 2.0), "R2": (30.0, 5.0), "R3": (300.0, 60.0), "R4": (10.0, 2.0)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK_JOBS} jobs, without R3")
    add_write_option(parser)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of philly_jobs.csv.gz")
    parser.add_argument("--repeat", type=int, default=5, help="runs per benchmark; the median counts")
    parser.add_argument("--only", help="run one of R1 to R4 or `ticks` in this process and print JSON")
    args = parser.parse_args()
    if args.only:
        print(json.dumps(one(args.only, args.data, quick=args.quick)))
        return 0
    if not (args.data / "philly_jobs.csv.gz").is_file():
        print(f"skipped: no Philly trace in `{args.data}`; set --data FOLDER")
        return 0
    report = "\n".join(lines(args))
    print(report)
    if args.write:
        write(report, quick=args.quick)
    return 0


def one(name: str, data: Path, *, quick: bool) -> dict[str, float]:
    """Run one benchmark in this process; returns its CPU seconds, jobs and memory."""
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
    """Jobs `first` to `end`, with time 0 at the first submission."""
    return trace.derived(from_zero(trace[number] for number in range(first, end)))


def timed(trace: Trace, gpus: str, policy: str, **options: object) -> dict[str, float]:
    """Simulate and return the figures of the run; `seconds` is CPU time, since the machine is shared."""
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
    """Twenty runs of t1, cycling through the policies."""
    trace, gpus = traces.load("t1"), cluster.parse("4xA100-40GB")
    names = policies.policies()
    simulate(trace, gpus, "most-memory")  # warm-up: loads the tables
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
    """Run the same jobs FIFO on the time-stepped simulator, with and without samples, and on ours."""
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
        "| | jobs | ended | CPU seconds (median) | min to max | required | goal | jobs/s | mean wait h | MiB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in names:
        runs = measure(name, args, 1 if name == "R3" else args.repeat)
        seconds = [run["seconds"] for run in runs]
        typical, last, (required, goal) = statistics.median(seconds), runs[-1], GOALS[name]
        out.append(
            f"| {name} | {last['jobs']:.0f} | {last['ended']:.0f} | {typical:.2f} | {min(seconds):.2f} to "
            f"{max(seconds):.2f} | {required:g} | {goal:g} | {last['jobs'] / typical:.0f} | "
            f"{last['mean_wait_h']:.2f} | {last['rss_mib']:.0f} |"
        )
    return [*out, "", *beside_ticks(measure("ticks", args, 1)[0])]


def beside_ticks(found: dict[str, float]) -> list[str]:
    """The comparison with the time-stepped simulator."""
    jobs, ours_s = found["jobs"], found["seconds"]
    rows = (
        ("time-stepped, as published", found["ticked_s"]),
        ("time-stepped, without samples", found["bare_s"]),
        ("cotenant", ours_s),
    )
    return [
        f"{jobs:.0f} jobs from the middle of Philly on {TICKED_SERVERS} servers of 8 GPUs, exclusive, FIFO, in one",
        f"process in sequence; {found['ticks']:.0f} simulated seconds. End times of the jobs differ by at most",
        f"{found['largest_difference_s']:.1f} s.",
        "",
        "| | CPU seconds | jobs/s | speedup of cotenant |",
        "| --- | ---: | ---: | ---: |",
        *[f"| {name} | {spent_s:.2f} | {jobs / spent_s:.0f} | {spent_s / ours_s:.0f} x |" for name, spent_s in rows],
        "",
        "`ticking.py` follows the published simulators of Helios and Lucid and documents its work per tick. Lucid's",
        "own simulator was measured separately at 98 jobs/s on 8,000 jobs of Philly and as many GPUs, on the same type",
        "of machine. Most of its time goes into sampling the cluster every simulated minute; without samples it does",
        "less than any published simulator.",
    ]


def write(report: str, *, quick: bool) -> None:
    """Write the report to benchmarks/results."""
    head = [
        f"# Speed of the simulator, {today()}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; {os.cpu_count()} cores, shared, no GPU. Seed 0.",
        "Seconds are CPU time on one core.",
        f"Repeat with `python -m benchmarks.simulator.replay_speed --write{' --quick' if quick else ''}`.",
        "Trace: Philly as published with Pollux (82,247 jobs); R2 and R3 draw workloads by run time, seed 0.",
        "",
    ]
    write_result("simulator", "\n".join([*head, report, ""]))


if __name__ == "__main__":
    sys.exit(main())
