"""Short jobs: how many can be submitted, and run, in a second, and what that costs. Parts of `reliability.py`.

Rates depend on what else the machine does; processor time a job does so far less. Beside us: task-spooler (Debian's
package `task-spooler`) and HyperQueue, whose wheel has no `hq` program, but a Python module that starts a server and a
worker within the process (`pip install hyperqueue`, here or in the environment of `$HYPERQUEUE_PYTHON`).
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

from benchmarks._lib.daemon_process import server
from benchmarks._lib.http_load import pound

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
    """16 clients at once, one job in a request and 200 in one."""
    clients, together = 16, 200
    singles, batches = (500, 16) if quick else (10_000, 100)
    with server(tick_s=1.0) as found:
        one, many = (json.dumps({"jobs": found.jobs(count, hold=True)}).encode() for count in (1, together))

        def row(told: str, body: bytes, times: int, jobs: int, *, keep_open: bool) -> str:
            used_s, ours_s, began_s = _used_s(found.process), time.process_time(), time.perf_counter()
            pound(found.socket, body, times=times, clients=clients, keep_open=keep_open)
            rate = times * jobs / (time.perf_counter() - began_s)
            used_ms = (_used_s(found.process) - used_s) * 1000 / (times * jobs)
            ours_ms = (time.process_time() - ours_s) * 1000 / (times * jobs)
            return f"| {told} | {rate:.0f} | {used_ms:.3f} | {ours_ms:.3f} |"

        pound(found.socket, one, times=100, clients=clients, keep_open=True)  # as in a daemon that is in use
        rows = [
            row("one job in a request, connections stay open", one, singles, 1, keep_open=True),
            row("one job in a request, each over a connection of its own", one, singles, 1, keep_open=False),
            row(f"{together} jobs in a request", many, batches, together, keep_open=True),
        ]
        found.abandon([])
    return [
        f"{clients} clients, durable when acknowledged (fsync); all of them are one process of raw sockets.",
        "",
        "| | jobs/s | the daemon's processor time a job, ms | the clients', ms |",
        "| --- | ---: | ---: | ---: |",
        *rows,
    ]


def launches(count: int, runs: int = 3) -> list[str]:
    """`/bin/true` from submit to recorded end, `runs` times, beside others."""
    rates = []
    with server() as found:
        found.client.submit(found.jobs(2 * SLOTS))  # runners are there before it counts, as on a server that is in use
        found.wait_for_all()
        daemon_s, runners_s = _used_s(found.process), _used_below_s(found.process)
        for _ in range(runs):
            began_s = time.perf_counter()
            found.client.submit(found.jobs(count))
            while found.client.jobs(active=True, last=1):
                time.sleep(0.05)
            rates.append(count / (time.perf_counter() - began_s))
        daemon_ms = (_used_s(found.process) - daemon_s) * 1000 / (runs * count)
        runners_ms = (_used_below_s(found.process) - runners_s) * 1000 / (runs * count)
        completed = Counter(job["state"] for job in found.client.jobs())["COMPLETED"] - 2 * SLOTS
    told = f"{completed} of {runs * count} completed; durable, claimed once, with evidence, {SLOTS} at once"
    return [
        f"Processor time of one `/bin/true`: {daemon_ms + runners_ms:.1f} ms. Of it the daemon {daemon_ms:.1f} ms,",
        "the rest its runner and the job itself.",
        "",
        "| `/bin/true` from submit to recorded end | jobs/s |",
        "| --- | ---: |",
        f"| cotenant ({told}; least of {runs} runs, median {statistics.median(rates):.0f}) | {min(rates):.0f} |",
        *_task_spooler(count),
        *_hyperqueue(2 * count),
    ]


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _used_below_s(process: psutil.Process) -> float:
    """Of all processes below, and of those that they have waited for."""
    used_s = 0.0
    for child in process.children(recursive=True):
        times = child.cpu_times()
        used_s += times.user + times.system + times.children_user + times.children_system
    return used_s


def _task_spooler(count: int) -> list[str]:
    program = shutil.which("tsp")
    if program is None:
        return ["| task-spooler | not installed |"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # its server may still be at work there
        slots = {"TS_SLOTS": str(SLOTS), "TS_MAXFINISHED": "10000"}
        env = {**os.environ, "TS_SOCKET": f"{folder}/s", "TMPDIR": folder, **slots}
        began_s = time.perf_counter()
        for _ in range(count):
            subprocess.run([program, "/bin/true"], env=env, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([program, "-w"], env=env, check=False, stdout=subprocess.DEVNULL)
        rate = count / (time.perf_counter() - began_s)
        subprocess.run([program, "-K"], env=env, check=False)
    return [f"| task-spooler ({SLOTS} slots, nothing on disk but output, a client process per job) | {rate:.0f} |"]


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
    told = (
        f"{SLOTS} cores, {count} tasks of one job, no journal, in one process; asked once a second whether all is done"
    )
    return [f"| HyperQueue ({told}) | {rate:.0f} |"]
