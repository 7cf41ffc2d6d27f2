"""Time of the commands that list a large queue, and the CPU time of client and daemon in it.

    python -m benchmarks.daemon.large_lists [--jobs 20000] [--write]

The jobs are arrays of held jobs. A command is started as a process of its own, so that its time includes imports. On a
machine with other work the CPU times are what to compare.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._lib.daemon_process import Server
from benchmarks._lib.results import add_write_option, commit, write_result

ARRAY = 10_000
REPEATS = 5
CALLS = (("ls",), ("ls", "-a"), ("ls", "-a", "--json"), ("squeue",), ("squeue", "-r"), ("sacct", "-X"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2 * ARRAY)
    add_write_option(parser)
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    server = Server(root)
    server.start()
    try:
        for first in range(0, options.jobs, ARRAY):
            tasks = list(range(min(ARRAY, options.jobs - first)))
            job = {
                "command": ["true"],
                "workdir": "/",
                "env": {},
                "name": "sweep",
                "declared_bytes": 2**30,
                "hold": True,
            }
            server.client.submit([{**job, "array": {"tasks": tasks, "limit": None}}])
        rows = [_row(server, call) for call in CALLS]
    finally:
        server.kill()
        shutil.rmtree(root, ignore_errors=True)
    lines = [
        f"# Lists of {options.jobs} jobs",
        "",
        f"Commit {commit()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; median of {REPEATS}, in seconds.",
        "",
        "| command | time | CPU of the client | CPU of the daemon | MB printed |",
        "| --- | --- | --- | --- | --- |",
        *rows,
    ]
    print("\n".join(lines))
    if options.write:
        write_result("large_lists", "\n".join(lines))
    return 0


def _row(server: Server, call: tuple[str, ...]) -> str:
    env = {**os.environ, "COTENANT_SOCKET": str(server.socket)}
    times = []
    printed = 0
    for _ in range(REPEATS):
        before, daemon_before = resource.getrusage(resource.RUSAGE_CHILDREN), server.process.cpu_times()
        begun = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "cotenant", *call], env=env, capture_output=True, check=True)
        taken_s = time.perf_counter() - begun
        after, daemon_after = resource.getrusage(resource.RUSAGE_CHILDREN), server.process.cpu_times()
        client_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        daemon_s = daemon_after.user + daemon_after.system - daemon_before.user - daemon_before.system
        times.append((taken_s, client_s, daemon_s))
        printed = len(done.stdout)
    medians = [statistics.median(column) for column in zip(*times, strict=True)]
    return f"| `{' '.join(call)}` | {' | '.join(f'{value:.2f}' for value in medians)} | {printed / 1e6:.1f} |"


if __name__ == "__main__":
    sys.exit(main())
