"""Submission and launch rates of short jobs, and their CPU time. Parts of `reliability.py`.

Rates depend on the load of the machine; CPU time per job depends on it much less. Baselines: task-spooler (Debian's
package `task-spooler`) and HyperQueue, whose wheel lacks the `hq` program and has a Python module that starts server
and worker in the process (`pip install hyperqueue`, here or in the environment of `$HYPERQUEUE_PYTHON`).
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter

import psutil

from benchmarks._lib.daemon_process import timed_server
from benchmarks._lib.http_load import generate_load

SLOTS = 8
HYPERQUEUE = """
import json, sys, time
from hyperqueue import Job
from hyperqueue.cluster import LocalCluster, WorkerConfig

def run(client, count):
    job = Job()
    for _ in range(count):
        job.program(["/bin/true"])
    client.wait_for_jobs([client.submit(job)])

with LocalCluster() as cluster:
    cluster.start_worker(WorkerConfig(cores=int(sys.argv[2])))
    client = cluster.client()
    run(client, 10)
    count = int(sys.argv[1])
    began_s = time.perf_counter()
    run(client, count)
    print(json.dumps(count / (time.perf_counter() - began_s)))
"""


def submits(*, quick: bool) -> list[str]:
    """Submission rates of 16 concurrent clients, with 1 and with 200 jobs per request."""
    clients, together = 16, 200
    singles, batches = (500, 16) if quick else (10_000, 100)
    with timed_server(tick_s=1.0) as found:
        one, many = (json.dumps({"jobs": found.jobs(count, hold=True)}).encode() for count in (1, together))

        def row(label: str, body: bytes, times: int, jobs: int, *, keep_alive: bool) -> str:
            used_s, ours_s, began_s = _used_s(found.process), time.process_time(), time.perf_counter()
            generate_load(found.socket, body, times=times, clients=clients, keep_alive=keep_alive)
            rate = times * jobs / (time.perf_counter() - began_s)
            used_ms = (_used_s(found.process) - used_s) * 1000 / (times * jobs)
            ours_ms = (time.process_time() - ours_s) * 1000 / (times * jobs)
            return f"| {label} | {rate:.0f} | {used_ms:.3f} | {ours_ms:.3f} |"

        generate_load(found.socket, one, times=100, clients=clients, keep_alive=True)  # warm-up
        rows = [
            row("1 job per request, keep-alive", one, singles, 1, keep_alive=True),
            row("1 job per request, new connection each", one, singles, 1, keep_alive=False),
            row(f"{together} jobs per request, keep-alive", many, batches, together, keep_alive=True),
        ]
        found.abandon([])
    return [
        f"{clients} clients in one process on raw sockets; every submission is durable when acknowledged (fsync).",
        "",
        "| | jobs/s | daemon CPU time per job, ms | client CPU time per job, ms |",
        "| --- | ---: | ---: | ---: |",
        *rows,
    ]


def launches(count: int, runs: int = 3) -> list[str]:
    """Rate of `/bin/true` from submission to the recorded exit, `runs` times, compared with other launchers."""
    rates = []
    with timed_server() as found:
        found.run(2 * SLOTS)  # warm-up: starts the runners
        daemon_s, runners_s = _used_s(found.process), _used_below_s(found.process)
        for _ in range(runs):
            began_s = time.perf_counter()
            found.run(count)
            rates.append(count / (time.perf_counter() - began_s))
        daemon_ms = (_used_s(found.process) - daemon_s) * 1000 / (runs * count)
        runners_ms = (_used_below_s(found.process) - runners_s) * 1000 / (runs * count)
        completed = Counter(job["state"] for job in found.client.jobs())["COMPLETED"] - 2 * SLOTS
    setting = f"{completed} of {runs * count} completed; durable, at most one start, exit evidence, {SLOTS} slots"
    return [
        f"CPU time per `/bin/true`: {daemon_ms + runners_ms:.1f} ms, of which the daemon takes {daemon_ms:.1f} ms",
        "and the runner with the job the rest.",
        "",
        "| `/bin/true` from submission to recorded exit | jobs/s |",
        "| --- | ---: |",
        f"| cotenant ({setting}; min of {runs} runs, median {statistics.median(rates):.0f}) | {min(rates):.0f} |",
        *_task_spooler(count),
        *_hyperqueue(2 * count),
    ]


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _used_below_s(process: psutil.Process) -> float:
    """CPU time of all descendants, including children that they have reaped."""
    used_s = 0.0
    for child in process.children(recursive=True):
        times = child.cpu_times()
        used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


def _task_spooler(count: int) -> list[str]:
    program = shutil.which("tsp")
    if program is None:
        return ["| task-spooler | not installed |"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # its server may still write there
        slots = {"TS_SLOTS": str(SLOTS), "TS_MAXFINISHED": "10000"}
        env = {**os.environ, "TS_SOCKET": f"{folder}/s", "TMPDIR": folder, **slots}
        began_s = time.perf_counter()
        for _ in range(count):
            subprocess.run([program, "/bin/true"], env=env, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([program, "-w"], env=env, check=False, stdout=subprocess.DEVNULL)
        rate = count / (time.perf_counter() - began_s)
        subprocess.run([program, "-K"], env=env, check=False)
    return [f"| task-spooler ({SLOTS} slots, only output on disk, one client process per job) | {rate:.0f} |"]


def _hyperqueue(count: int) -> list[str]:
    python = os.environ.get("HYPERQUEUE_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        command = [python, "-c", HYPERQUEUE, str(count), str(SLOTS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=folder)
    if "No module named 'hyperqueue'" in done.stderr:
        return ["| HyperQueue | not installed |"]
    if done.returncode != 0:
        return [f"| HyperQueue | failed: {done.stderr.strip().splitlines()[-1]} |"]
    rate = json.loads(done.stdout.strip().splitlines()[-1])
    setting = (
        f"{SLOTS} cores, {count} tasks of one job, no journal, in one process; polled for completion once a second"
    )
    return [f"| HyperQueue ({setting}) | {rate:.0f} |"]
