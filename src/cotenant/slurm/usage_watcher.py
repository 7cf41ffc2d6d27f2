"""Writes a job's GPU memory and energy into its record while it runs: `... usage_watcher FOLDER JOB UID GPUS [SIM]`.

Prolog starts it, as root, Epilog ends it. The record is AdminComment, e.g. `cotenant:peak=9318M,energy=61234J`: the
most that the job's processes held on one of its GPUs, and their share of the energy. Slurm refuses changes of a job
that completes (seen with 22.05), so Epilog is too late for it; TaskEpilog has it written when the last task ends.

A process is of a job that has its user and was started with SLURM_JOB_ID.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cotenant.core.errors import CotenantError
from cotenant.core.units import MiB
from cotenant.osutil import procfs
from cotenant.osutil.env_tags import has_env_tag
from cotenant.slurm.gpu_usage import JobGpuUsage
from cotenant.slurm.node_job import open_gpus

OURS = "cotenant:"
SAMPLE_S = 1.0
FLUSH_POLL_S = 0.1
MIN_WRITE_S = 10.0
"""Between two writes that no end of a task triggers: each is a call of slurmctld."""
MAX_WRITE_S = 60.0
MIN_GROWTH = 1.01
TIMEOUT_S = 30.0


def main() -> int:
    """Watch until the folder is gone or SIGTERM comes."""
    folder, job_id, uid, visible, *simulate = sys.argv[1:]
    backend = open_gpus(visible, Path(simulate[0]) if simulate else None)
    usage = JobGpuUsage(backend, lambda pids: {pid for pid in pids if is_of_job(pid, job_id, int(uid))})
    watch(Path(folder), usage, AdminComment(job_id))
    return 0


def is_of_job(pid: int, job_id: str, uid: int) -> bool:
    """Whether a process is of a job of Slurm; users can set SLURM_JOB_ID, but not become another."""
    return procfs.real_uid(pid) == uid and has_env_tag(pid, {"SLURM_JOB_ID": job_id}) is True


class AdminComment:
    """The field of a job that its user cannot change."""

    def __init__(self, job_id: str) -> None:
        self._job_id = job_id
        self._name: str | None = None
        self._is_free: bool | None = None

    def write(self, text: str) -> bool:
        """Set it, unless the site uses it for something else; False if slurmctld does not answer."""
        self._name = self._name or name_of(self._job_id)
        if self._name is None:
            return False
        if self._is_free is None:
            self._is_free = _is_free(self._name)
        if self._is_free:
            return _run("scontrol", "update", f"JobId={self._name}", f"AdminComment={text}") is not None
        return self._is_free is False


def _is_free(name: str) -> bool | None:
    """Whether the field of a job is empty or ours; None: not known.

    By squeue, which prints nothing besides: in what scontrol prints, a job's name may look like the field.
    """
    mark = f"|{secrets.token_hex(8)}|"
    text, *end = (_run("squeue", "-h", "-j", name, "-O", f"admin_comment:{mark}") or "").split(mark)
    return text.strip() in ("", "N/A", "(null)") or text.startswith(OURS) if end else None


def name_of(job_id: str) -> str | None:
    """What scontrol calls one job: `39_2` for a task of an array, whose last one is job 39; None: not known."""
    found = _run("squeue", "-h", "-j", job_id, "-o", "%A|%F|%K")
    if found is None:
        return None
    rows = [line.split("|") for line in found.splitlines()]
    tasks = [f"{row[1]}_{row[2]}" for row in rows if len(row) == 3 and row[0] == job_id and row[2].isdecimal()]
    return tasks[0] if tasks else job_id


def watch(folder: Path, usage: JobGpuUsage, comment: AdminComment, sleep: Callable[[float], None] = time.sleep) -> None:
    """Read and write until `folder` is gone."""
    flush = folder / "flush" / "now"
    sampled_s = written_s = -MAX_WRITE_S
    written, written_peak = "", 0
    while folder.exists():
        flush_requested = os.path.lexists(flush)
        now_s = time.monotonic()
        if flush_requested or now_s - sampled_s >= SAMPLE_S:
            usage.read()
            sampled_s = now_s
        text, peak = text_of(usage), usage.peak_bytes or 0
        wait_s = MIN_WRITE_S if peak > written_peak * MIN_GROWTH else MAX_WRITE_S
        if text not in ("", written) and (flush_requested or now_s - written_s >= wait_s):
            written_s = now_s
            if comment.write(text):
                written, written_peak = text, peak
        if flush_requested:
            with contextlib.suppress(OSError):
                flush.unlink()
        sleep(FLUSH_POLL_S)


def text_of(usage: JobGpuUsage) -> str:
    """The record; empty before the job's processes were seen on a GPU."""
    if usage.peak_bytes is None:
        return ""
    energy = "" if usage.energy_j is None else f",energy={usage.energy_j:.0f}J"
    return f"{OURS}peak={-(-usage.peak_bytes // MiB)}M{energy}"


def _run(*command: str) -> str | None:
    """What one of Slurm's commands prints; None if it fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=TIMEOUT_S, text=True
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr, flush=True)
    return done.stdout if done.returncode == 0 else None


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CotenantError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
