"""Short jobs: how many can be submitted, and run, in a second, and what that costs. Parts of `reliability.py`.

Rates depend on what else the machine does; processor time a job does so far less. Beside us: task-spooler (Debian's
package `task-spooler`) and HyperQueue, whose wheel has no `hq` program, but a Python module that starts a server and a
worker within the process (`pip install hyperqueue`, here or in the environment of `$HYPERQUEUE_PYTHON`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import psutil
from bench_server import Server, server

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


def submits(each: int) -> list[str]:
    """16 clients at once, one job in a request and `each` in one."""
    clients = 16
    with server(tick_s=1.0) as found:

        def submit_one(_: int) -> None:
            for _ in range(each):
                found.client.submit(found.jobs(1, hold=True))

        total = clients * each
        one = _cost(found, total, submit_one, range(clients))
        many = _cost(found, total, lambda _: found.client.submit(found.jobs(each, hold=True)), range(clients))
    return [
        f"{clients} clients, durable when acknowledged (fsync): {one[0]:.0f} submits/s, one job in a request,",
        f"{one[1]:.2f} ms of the daemon's processor time each;",
        f"{many[0]:.0f} jobs/s, {each} in a request, {many[1]:.2f} ms each.",
    ]


def _cost(found: Server, total: int, act: object, over: Iterable[int]) -> tuple[float, float]:
    """Jobs a second, and milliseconds of the daemon's processor time for one."""
    used_s, began_s = _used_s(found.process), time.perf_counter()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(act, over))  # type: ignore[arg-type]
    return total / (time.perf_counter() - began_s), (_used_s(found.process) - used_s) * 1000 / total


def launches(count: int) -> list[str]:
    """`/bin/true` from submit to recorded end, beside others."""
    with server() as found:
        found.client.submit(found.jobs(2 * SLOTS))  # runners are there before it counts, as on a server that is in use
        found.wait_for_all()
        daemon_s, runners_s, began_s = _used_s(found.process), _used_below_s(found.process), time.perf_counter()
        found.client.submit(found.jobs(count))
        while found.client.jobs(active=True, last=1):
            time.sleep(0.1)
        took_s = time.perf_counter() - began_s
        daemon_ms = (_used_s(found.process) - daemon_s) * 1000 / count
        runners_ms = (_used_below_s(found.process) - runners_s) * 1000 / count
        completed = Counter(job["state"] for job in found.client.jobs())["COMPLETED"] - 2 * SLOTS
    told = f"{completed} of {count} completed; durable, claimed once, with evidence, {SLOTS} at once"
    return [
        f"Processor time of one `/bin/true`: {daemon_ms + runners_ms:.1f} ms. Of it the daemon {daemon_ms:.1f} ms,",
        "the rest its runner and the job itself.",
        "",
        "| `/bin/true` from submit to recorded end | jobs/s |",
        "| --- | ---: |",
        f"| cotenant ({told}) | {count / took_s:.0f} |",
        *_task_spooler(count),
        *_hyperqueue(2 * count),
    ]


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _used_below_s(process: psutil.Process) -> float:
    """Of all processes below, and of those that they have waited for."""
    used_s = 0.0
    for each in process.children(recursive=True):
        times = each.cpu_times()
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
