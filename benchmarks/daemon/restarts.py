"""Startup time of the daemon after many jobs: replaying all events, and from a snapshot.

    python -m benchmarks.daemon.restarts [--jobs N ...] [--write]

The journal contains finished jobs: four events each, with an environment of 40 variables that all jobs share or that
differs per job. The time is measured from process start to the first `status` response and includes imports; the row
with 0 jobs is this fixed cost.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks._lib.daemon_process import Server
from benchmarks._lib.results import add_write_option, today, write_result
from cotenant.core.events import AttemptExited, AttemptPlaced, AttemptStarted, JobSubmitted, Journaled
from cotenant.core.job import AttemptExit, JobSpec, ProcessId
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.daemon.serve import JOURNAL_FILE
from cotenant.store.sqlite import SqliteJournal

REPEATS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[0, 1000, 10_000], help="numbers of finished jobs")
    add_write_option(parser)
    args = parser.parse_args()
    before = os.getloadavg()[0]
    rows = [_row(count, shared=shared) for count in args.jobs for shared in ((True, False) if count else (True,))]
    text = "\n".join(
        [
            f"# Daemon startup after many jobs, {today()}",
            "",
            f"Python {platform.python_version()}; {os.cpu_count()} cores, no GPU; load average before {before:.1f},",
            f"after {os.getloadavg()[0]:.1f}. Best of {REPEATS}, from process start to the first response.",
            "Repeat with `python -m benchmarks.daemon.restarts --write`.",
            "",
            "| finished jobs | environments | full replay, s | from snapshot, s | journal before, MB | after, MB |",
            "| ---: | --- | ---: | ---: | ---: | ---: |",
            *rows,
            "",
        ]
    )
    print(text)
    if args.write:
        write_result("restarts", text)
    return 0


def _row(count: int, *, shared: bool) -> str:
    root = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    try:
        journal = root / "state" / JOURNAL_FILE
        writer = SqliteJournal(journal)
        writer.append(list(_events(count, shared=shared)))
        writer.close()
        size = _bytes(journal)
        cold_s = []
        for repeat in range(REPEATS):  # each on a copy without a snapshot
            here = root / str(repeat)
            shutil.copytree(root / "state", here / "state")
            cold_s.append(_start_s(Server(here), count))
        warm_s = [_start_s(Server(here), count) for _ in range(REPEATS)]
        grown = _bytes(here / "state" / JOURNAL_FILE)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    kind = "shared" if shared else "per job"
    return f"| {count} | {kind} | {min(cold_s):.2f} | {min(warm_s):.2f} | {size / 1e6:.1f} | {grown / 1e6:.1f} |"


def _bytes(journal: Path) -> int:
    """Size of the file after SQLite's WAL checkpoint."""
    SqliteJournal(journal).close()
    return journal.stat().st_size


def _start_s(server: Server, count: int) -> float:
    begun = time.perf_counter()
    server.start()
    status = server.client.status()
    taken_s = time.perf_counter() - begun
    if status["jobs"].get("COMPLETED", 0) != count:
        raise SystemExit(f"the daemon reports {status['jobs']}, expected {count} completed jobs")
    server.kill()
    return taken_s


def _events(count: int, *, shared: bool) -> Iterator[Journaled]:
    env = {f"VARIABLE_{i}": "x" * 40 for i in range(40)}
    now = time.time() - 86400
    for job_id in range(1, count + 1):
        place = Placement(job_id=job_id, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
        mine = env if shared else {**env, "TASK": str(job_id)}
        spec = JobSpec(
            command=("python", "train.py"), workdir="/", env=mine, user="ann", uid=1000, name="j", declared_bytes=GiB
        )
        yield JobSubmitted(at_s=now + job_id, cause="submit", job_id=job_id, spec=spec)
        yield AttemptPlaced(at_s=now + job_id, cause="policy", job_id=job_id, attempt=1, placement=place)
        process = ProcessId(pid=1, start_ticks=1, boot_id="b")
        yield AttemptStarted(at_s=now + job_id, cause="engine", job_id=job_id, attempt=1, process=process)
        end = AttemptExit(exit_code=0, signal=None, reason="exited")
        peaks = {"GPU-0": GiB}
        yield AttemptExited(
            at_s=now + job_id + 90, cause="engine", job_id=job_id, attempt=1, exit=end, peak_observed_bytes=peaks
        )


if __name__ == "__main__":
    sys.exit(main())
