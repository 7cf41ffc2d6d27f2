"""Reliability and throughput of the daemon: crashes, fuzzing, concurrent clients, long queues, short jobs.

    python -m benchmarks.daemon.reliability [--quick] [--write] [--only PART ...]

Parts: schedules (random crashes in one process), kills (`kill -9` of a real daemon), fuzz (random requests, job files
and tool outputs), crowd (100 concurrent clients), queue (10,000 pending jobs), submits, launches (`/bin/true` end to
end, compared with task-spooler and HyperQueue where these are installed), idle. The head of the result gives the load
average: on a busy machine rates drop and latencies rise; CPU time changes little.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks._lib.daemon_process import Server, server
from benchmarks._lib.results import add_write_option, commit, today, write_result
from benchmarks.daemon import reliability_fuzz, reliability_launches
from benchmarks.daemon.run_notes import RunNotes
from cotenant.core.errors import CotenantError, DaemonUnreachable
from cotenant.core.events import JobSubmitted, ServerSampled
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.job import JobSpec
from cotenant.core.units import GiB
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.policies import create
from tests.support.crash_model import CrashSchedule

SEED = 20261121


def schedules(*, quick: bool) -> list[str]:
    count = 100 if quick else 1000
    steps: Counter[str] = Counter()
    jobs = attempts = 0
    faults: list[str] = []
    for seed in range(count):
        verdict = CrashSchedule(SEED + seed, policy=("most-memory", "best-fit", "exclusive")[seed % 3]).run()
        steps += verdict.steps
        jobs += verdict.jobs
        attempts += verdict.attempts
        faults += [f"seed {SEED + seed}: {fault}" for fault in verdict.faults]
    lines = [
        f"{count} random schedules in one process: {jobs} jobs acknowledged, {attempts} attempts,",
        f"{sum(steps.values())} crashes.",
        f"Faults (jobs lost or run twice, memory over-promised): {len(faults)}.",
        "",
        "| crash | count |",
        "| --- | ---: |",
        *(f"| {step} | {times} |" for step, times in sorted(steps.items())),
    ]
    return [*lines, *faults[:10]]


def kills(*, quick: bool) -> list[str]:
    rng = random.Random(SEED)
    rounds = 5 if quick else 40
    promised: list[int] = []
    with server() as found:
        notes = RunNotes(found.root / "runs")
        for _ in range(rounds):
            killer = threading.Timer(rng.uniform(0.0, 0.4), found.kill)
            killer.start()
            with contextlib.suppress(CotenantError):
                while True:
                    views = found.client.submit(found.jobs(rng.randrange(1, 5), *notes.command()))
                    promised += [int(view["id"]) for view in views]
            killer.join()
            found.start()
        found.wait_for_all()
        jobs = {int(job["id"]): job for job in found.client.jobs()}
        lost, twice = notes.lost(promised, jobs), notes.run_twice(jobs)
    outcome = f"{len(lost)} lost, {len(twice)} run twice or only in part"
    return [f"{rounds} times `kill -9`, {len(promised)} jobs acknowledged: {outcome}."]


def fuzz(*, quick: bool) -> list[str]:
    count = 1000 if quick else 10_000
    return [*reliability_fuzz.requests(count, SEED), *reliability_fuzz.texts(count, SEED)]


def crowd(*, quick: bool) -> list[str]:
    clients = 20 if quick else 100
    with server() as found:
        taken_s: list[float] = []

        def visit(_: int) -> int:
            begun = time.perf_counter()
            job_id = int(found.client.submit(found.jobs(1, hold=True))[0]["id"])
            found.client.explain(job_id)
            found.client.jobs(active=True, last=20)
            found.client.cancel(job_id)
            taken_s.append(time.perf_counter() - begun)
            return job_id

        with ThreadPoolExecutor(clients) as pool:
            ids = list(pool.map(visit, range(clients)))
        views = found.client.jobs()
    right = len(set(ids)) == clients and {view["state"] for view in views} == {"CANCELLED"}
    median_s = statistics.median(taken_s)
    return [
        f"{clients} concurrent clients, each submits, explains, lists and cancels: {'correct' if right else 'WRONG'};",
        f"median {median_s * 1000:.0f} ms, max {max(taken_s) * 1000:.0f} ms for the four calls.",
    ]


def queue(*, quick: bool) -> list[str]:
    count = 1000 if quick else 10_000
    with server(tick_s=1.0) as found:
        begun = time.perf_counter()
        found.client.submit(found.jobs(8, "/bin/sleep", "1000", exclusive=True))
        found.client.submit(found.jobs(count))
        submit_s = time.perf_counter() - begun
        while any(job["reason"].startswith("number") for job in found.client.jobs(active=True)):
            time.sleep(0.2)
        list_s = _best(lambda: found.client.jobs(max_waiting=200, max_done=20))
        all_s = _best(lambda: found.client.jobs(active=True))
        listings = [_listing(found, *flags) for flags in ((), ("--json",), ("--all",), ("--all", "--json"))]
        explain_s = _best(lambda: found.client.explain(count))
        rss = found.process.memory_info().rss
        found.client.jobs()
        ids = [job["id"] for job in found.client.jobs(active=True)]
        found.kill()
        begun = time.perf_counter()
        found.start()
        found.client.status()
        restart_s = time.perf_counter() - begun
        complete = len(found.client.jobs(active=True)) == len(ids)
        found.abandon(ids[:8])
    decisions_s = _decisions_s(count)
    median_s = statistics.median(decisions_s)
    return [
        f"{count} jobs pending, 8 running. Durable submission in one request: {submit_s:.2f} s.",
        f"The request of `ls` takes {list_s * 1000:.0f} ms, that of `ls --all` {all_s * 1000:.0f} ms.",
        f"`explain` of one job takes {explain_s * 1000:.1f} ms. RSS of the daemon: {rss / 2**20:.0f} MiB.",
        f"One decision (a sample of 8 GPUs on which no job fits): median {median_s * 1000:.1f} ms,",
        f"max {max(decisions_s) * 1000:.1f} ms.",
        f"Recovery after `kill -9`: {restart_s:.2f} s, {'all jobs recovered' if complete else 'JOBS MISSING'}.",
        "",
        "| command | CPU time, ms | wall time, ms | output, KiB |",
        "| --- | ---: | ---: | ---: |",
        *listings,
    ]


def _listing(found: Server, *flags: str) -> str:
    """Table row with the best of five runs; plain `ls` lists 200 pending jobs, `--all` all of them."""
    command = [sys.executable, "-m", "cotenant", "ls", "--socket", str(found.socket), *flags]
    runs = []
    for _ in range(5):
        before, began_s = os.times(), time.perf_counter()
        printed = len(subprocess.run(command, check=True, capture_output=True).stdout)
        took_s, after = time.perf_counter() - began_s, os.times()
        used_s = after.children_user + after.children_system - before.children_user - before.children_system
        runs.append((used_s, took_s, printed))
    used_s, took_s, printed = min(runs)
    return f"| `{' '.join(('ls', *flags))}` | {used_s * 1000:.0f} | {took_s * 1000:.0f} | {printed // 1024} |"


def _best(act: Callable[[], object], times: int = 5) -> float:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        act()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def _decisions_s(count: int) -> list[float]:
    manager = Manager(create("most-memory"), ManagerConfig(estimate=False))
    gpus = tuple(Gpu(uuid=f"GPU-{i}", index=i, name="A100-40GB", memory_total_bytes=40 * GiB) for i in range(8))
    rng = random.Random(SEED)
    for job_id in range(1, count + 1):
        spec = JobSpec(
            command=("x",), workdir="/", env={}, user="a", uid=1, name="n", declared_bytes=rng.randrange(20, 30) * GiB
        )
        manager.handle(JobSubmitted(at_s=0.0, cause="bench", job_id=job_id, spec=spec))
    taken = []
    for second in range(1, 22):
        samples = {gpu.uuid: GpuSample(at_s=float(second), used_bytes=30 * GiB, smact=0.5) for gpu in gpus}
        event = ServerSampled(at_s=float(second), cause="bench", gpus=gpus, samples=samples, observed=())
        begun = time.perf_counter()
        manager.handle(event)
        taken.append(time.perf_counter() - begun)
    return taken[1:]


def submits(*, quick: bool) -> list[str]:
    return reliability_launches.submits(quick=quick)


def launches(*, quick: bool) -> list[str]:
    return reliability_launches.launches(100 if quick else 1000)


def idle(*, quick: bool) -> list[str]:
    seconds = 5 if quick else 30
    with server(tick_s=1.0) as found:
        time.sleep(2)
        process = found.process
        before = process.cpu_times()
        time.sleep(seconds)
        after = process.cpu_times()
        used = (after.user + after.system - before.user - before.system) / seconds
        rss = process.memory_info().rss
        helpers = sum(child.memory_info().rss for child in process.children(recursive=True))
    return [
        f"Idle, 8 simulated GPUs, one sample per second: {used:.1%} of a core, {rss / 2**20:.0f} MiB RSS",
        f"(child processes: {helpers / 2**20:.0f} MiB).",
    ]


PARTS: dict[str, Callable[..., list[str]]] = {
    part.__name__: part for part in (schedules, kills, fuzz, crowd, queue, submits, launches, idle)
}


def report(parts: Sequence[str], *, quick: bool) -> str:
    lines = []
    for name in parts:
        begun = time.perf_counter()
        try:
            found = PARTS[name](quick=quick)
        except DaemonUnreachable as error:
            found = [f"FAILED: {error.message}"]
        lines += [f"## {name}", "", *found, "", f"({time.perf_counter() - begun:.0f} s)", ""]
        print("\n".join(lines[-len(found) - 5 :]), flush=True)
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of each part")
    add_write_option(parser)
    parser.add_argument(
        "--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    args = parser.parse_args()
    load = os.getloadavg()[0]
    text = report(args.only, quick=args.quick)
    if args.write:
        some = [] if args.only == list(PARTS) else args.only  # a partial result has a page of its own
        flags = (" --quick" if args.quick else "") + (f" --only {' '.join(some)}" if some else "")
        head = [
            f"# Reliability and throughput of the daemon, {today()}",
            "",
            f"Commit {commit()}; Python {platform.python_version()}; {os.cpu_count()} cores, no GPU.",
            f"Load average before {load:.1f}, after {os.getloadavg()[0]:.1f}; seed {SEED}.",
            f"Repeat with `python -m benchmarks.daemon.reliability{flags} --write`.",
            "",
        ]
        write_result("-".join(["reliability", *some]), "\n".join([*head, text]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
