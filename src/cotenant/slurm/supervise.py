"""Runs the user's script inside a job of Slurm, and knows how it ended: `... supervise.main FOLDER [ARGS]`.

In `FOLDER` are the script and what the submission learned, see `watched_script`. The exit code is the script's. Signals
go on to it, and if one ends it, the same one ends this process. A script that ran out of GPU memory, by the evidence
that the daemon wants (decision 0002), is submitted again as a new job with more memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError
from cotenant.core.job import AttemptExit, OomEvidence
from cotenant.engines.oom_question import TAIL_BYTES, oom_evidence
from cotenant.osutil.forwarding import popen_with_signals
from cotenant.osutil.locks import LockHeldError, hold_lock, try_lock
from cotenant.scheduling.recovery import ran_out_of_memory
from cotenant.slurm.gpu_usage import JobGpuUsage, open_job_usage
from cotenant.slurm.job_records import JobRecords
from cotenant.slurm.watched_script import JOB_FILE, SCRIPT_FILE, interpreter_words

SAMPLE_S = 1.0
RECORD_EVERY_S = 10.0
ABANDONED_S = 24 * 3600.0
LOCK_FILE = "lock"
"""In the folder of a script, held while it runs."""
END_FIELDS = ("ended_at_s", "exit_code", "signal", "oom", "resubmitted_as")


def main() -> int:
    """Run the script in the folder `sys.argv[1]`; see the top of this module."""
    folder = Path(sys.argv[1])
    job = json.loads((folder / JOB_FILE).read_text(encoding="utf-8"))
    with contextlib.suppress(OSError, LockHeldError):  # a full disk, or a file system without locks
        hold_lock(folder / LOCK_FILE)  # until the end of this process
    remove_abandoned(folder.parent)
    supervisor = ScriptSupervisor(folder, job, JobRecords(Path(job["records"])))
    try:
        status = supervisor.run(sys.argv[2:])
    finally:
        text = supervisor.script_text()
        shutil.rmtree(folder, ignore_errors=True)
    supervisor.finish(status, text, sys.argv[2:])
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def remove_abandoned(parent: Path) -> None:
    """Remove folders of this user's jobs that Slurm has killed (SIGKILL): old ones that no process has in use."""
    for path in parent.glob("cotenant-[0-9]*.??????"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if is_ours and time.time() - found.st_mtime > ABANDONED_S:
                with (path / LOCK_FILE).open("rb") as file:
                    if try_lock(file.fileno()):
                        shutil.rmtree(path)


class ScriptSupervisor:
    """One run of a script in a job of Slurm."""

    def __init__(self, folder: Path, job: dict[str, Any], records: JobRecords) -> None:
        self._folder = folder
        self._job = job
        self._records = records
        self._job_id = os.environ.get("SLURM_JOB_ID", "0")
        self._outputs = _output_files()
        self._usage: JobGpuUsage | None = None
        self._has_ended = threading.Event()
        self._received: set[int] = set()

    def script_text(self) -> str:
        """The user's script."""
        return (self._folder / SCRIPT_FILE).read_text(encoding="utf-8", errors="surrogateescape")

    def run(self, arguments: list[str]) -> int:
        """Run the script to its end; its status as of `subprocess.Popen.returncode`."""
        fields = {name: self._job[name] for name in ("promised_bytes", "shards", "estimator", "attempt")}
        # A job that is requeued has the record of its last run, and a number may be used again.
        unknown = dict.fromkeys(("seen_bytes", "energy_j", *END_FIELDS))
        self._record({**fields, **unknown, "node": os.environ.get("SLURMD_NODENAME", os.uname().nodename)})
        script = str(self._folder / SCRIPT_FILE)
        words = [*interpreter_words(self.script_text()), script, *arguments]
        process = popen_with_signals(words, self._received.add)
        watcher = threading.Thread(target=self._watch, args=(process.pid,), daemon=True)
        watcher.start()
        status = process.wait()
        self._has_ended.set()
        watcher.join(timeout=SAMPLE_S)
        return status

    def _watch(self, pid: int) -> None:
        """Sample the GPUs until the script has ended."""
        self._usage = open_job_usage(pid)
        if self._usage is None:
            return
        recorded_s, recorded_bytes = 0.0, None
        while not self._has_ended.is_set():
            self._usage.read()
            now_s = time.monotonic()
            if self._usage.peak_bytes != recorded_bytes and (
                recorded_bytes is None or now_s - recorded_s >= RECORD_EVERY_S
            ):
                self._record(self._seen())
                recorded_s, recorded_bytes = now_s, self._usage.peak_bytes
            self._has_ended.wait(SAMPLE_S)

    def _seen(self) -> dict[str, Any]:
        if self._usage is None:
            return {"seen_bytes": None, "energy_j": None}
        return {"seen_bytes": self._usage.peak_bytes, "energy_j": self._usage.energy_j}

    def finish(self, status: int, text: str, arguments: list[str]) -> None:
        """Record the end; after running out of GPU memory, submit the script `text` again."""
        end = self._end(status)
        is_oom = ran_out_of_memory(end)
        fields = {
            **self._seen(),
            "ended_at_s": time.time(),
            "exit_code": end.exit_code,
            "signal": end.signal,
            "oom": is_oom,
            "resubmitted_as": None,
        }
        if is_oom:
            wanted = None
            if end.oom.tried_bytes is not None and end.oom.in_use_bytes is not None:
                wanted = end.oom.tried_bytes + end.oom.in_use_bytes
            fields["resubmitted_as"] = self._resubmit(text, arguments, wanted)
        self._record(fields)

    def _end(self, status: int) -> AttemptExit:
        failed = status != 0
        evidence = oom_evidence([_tail(path, start) for path, start in self._outputs], failed=failed) if failed else {}
        usage = self._usage
        return AttemptExit(
            exit_code=status if status >= 0 else None,
            signal=-status if status < 0 else None,
            reason="exited",
            oom=OomEvidence(
                **evidence,
                free_bytes=None if usage is None else usage.free_bytes,
                total_bytes=None if usage is None else max(usage.total_bytes.values(), default=None),
            ),
        )

    def _resubmit(self, text: str, arguments: list[str], wanted_bytes: int | None) -> str | None:
        """Id of the new job; None, with a line in the job's output, if there is none."""
        from cotenant.slurm.submission import resubmit

        # `scancel`, the time limit, or a requeue, after which it runs again anyway.
        if signal.SIGTERM in self._received:
            print("cotenant: out of GPU memory: not submitted again: the job was stopped", file=sys.stderr, flush=True)
            return None
        peak = 0 if self._usage is None else self._usage.peak_bytes or 0
        try:
            job_id, said = resubmit(self._job, text, arguments, peak_bytes=peak, wanted_bytes=wanted_bytes)
        except (CotenantError, OSError) as error:
            job_id, said = None, f"not submitted again: {error}"
        print(f"cotenant: out of GPU memory: {said}", file=sys.stderr, flush=True)
        return job_id

    def _record(self, fields: dict[str, Any]) -> None:
        """Update the record; a disk that is full or absent must not end the job."""
        with contextlib.suppress(OSError, CotenantError):
            self._records.update(self._job_id, "ran", fields)


def _output_files() -> list[tuple[str, int]]:
    """Files that stdout and stderr go to, and where this job's output begins in them: `--open-mode=append` has more."""
    found: dict[tuple[int, int], tuple[str, int]] = {}
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode):
                path = f"/proc/self/fd/{descriptor}"
                found[status.st_dev, status.st_ino] = (path, status.st_size)
    return list(found.values())


def _tail(path: str, start: int) -> str:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            size = file.seek(0, os.SEEK_END)
            file.seek(max(min(start, size), size - TAIL_BYTES))
            return file.read(TAIL_BYTES).decode(errors="replace")
    except OSError:
        return ""
