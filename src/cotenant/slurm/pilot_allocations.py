"""Allocations of Slurm for a pilot, by sbatch, squeue, scancel and srun.

Slurm may say that an allocation is over, or know nothing of it any more, while its processes run: slurmctld came back
with older state, or a node that it takes for dead is only out of its reach. So an allocation is over when its keeper
has finished, or has been silent for `SILENT_S`.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.hosts.allocations import ALLOCATION_ID, AllocationNote, AllocationReport, AllocationState
from cotenant.hosts.keeper import NOTE_CHECK_S, end_of, mark_of
from cotenant.slurm.installation import (
    SlurmInstallation,
    find_installation,
    literal_path,
    split_rows,
    without_allocation,
)
from cotenant.slurm.pack import parse_time_left

COLUMNS = ("job_id", "name", "state", "node", "length", "end", "reason")
FORMAT = "%A|%j|%T|%N|%l|%e|%r"
TIMES_IN_SECONDS = {"SLURM_TIME_FORMAT": "%s"}
"""squeue(1): a strftime(3) format, here seconds since the epoch."""
STATES: Mapping[str, AllocationState] = {
    "PENDING": "pending",
    "CONFIGURING": "pending",  # its node is being powered up
    "REQUEUE_HOLD": "pending",
    "REQUEUED": "pending",
    "RUNNING": "running",
    "SUSPENDED": "running",
    "RESIZING": "running",
    "SIGNALING": "running",
    "STOPPED": "running",
    "STAGE_OUT": "ending",
    "COMPLETING": "ending",
    "BOOT_FAIL": "ended",
    "CANCELLED": "ended",
    "COMPLETED": "ended",
    "DEADLINE": "ended",
    "FAILED": "ended",
    "NODE_FAIL": "ended",
    "OUT_OF_MEMORY": "ended",
    "PREEMPTED": "ended",
    "REVOKED": "ended",
    "SPECIAL_EXIT": "ended",
    "TIMEOUT": "ended",
}
"""squeue(1), job state codes. A word that a later Slurm adds is none of them: nothing is decided."""
FORGOTTEN = "it is no longer listed"
SILENT_S = 6 * NOTE_CHECK_S
"""A keeper that has not touched its mark for so long is gone with its node, or was killed with all of its cgroup."""


class SlurmAllocations:
    """Allocations of one node each, with the `words` that sbatch gets; `notes`: folder of the pilot's notes.

    Raises:
        UsageError: the words make an array.
    """

    manager, noun = "Slurm", "job"

    def __init__(self, installation: SlurmInstallation, words: Sequence[str], notes: Path) -> None:
        if any(word.startswith(("-a", "--array", "--wrap")) for word in words):
            raise UsageError("`pilot.sbatch` has --array or --wrap, wanted options of one allocation")
        self._slurm, self._words, self._notes = installation, list(words), notes
        self._touched: dict[str, tuple[int, float]] = {}
        """By name of an allocation that may be over: the time in its keeper's mark, and since when that is so."""

    def request(self, name: str, command: list[str], log: Path) -> str:
        """Submit an allocation that runs `command`."""
        file = literal_path(log)
        script = "exec " + " ".join(_quoted(word) for word in command)
        ours = ("--parsable", "--no-requeue", "-N1", "-J", name, "-o", file, "-e", file, "--wrap", script)
        answer = self._slurm.output("sbatch", *self._words, *ours, env=without_allocation(os.environ))
        return answer.strip().partition(";")[0]

    def report(self, names: Iterable[str]) -> Mapping[str, AllocationReport]:
        """What squeue lists, also of those that ended in the last minutes (MinJobAge), and what their keepers show."""
        wanted = list(names)
        words = ("-h", "-t", "all", "-u", str(os.getuid()), "-n", ",".join(wanted), "-o", FORMAT)
        env = {**without_allocation(os.environ), **TIMES_IN_SECONDS}
        rows = split_rows(self._slurm.output("squeue", *words, env=env), COLUMNS)
        listed = {
            row["name"]: AllocationReport(
                job_id=row["job_id"],
                state=STATES.get(row["state"], "ending"),
                word=row["state"],
                reason=row["reason"],
                node=row["node"],
                length_s=parse_time_left(row["length"]) or None,
                ends_at_s=float(row["end"]) if row["state"] != "PENDING" and row["end"].isdecimal() else None,
            )
            for row in rows
        }
        reports = {name: self._with_keeper(name, listed.get(name)) for name in wanted}
        return {name: report for name, report in reports.items() if report is not None}

    def _with_keeper(self, name: str, listed: AllocationReport | None) -> AllocationReport | None:
        """A running allocation has its node once it has a keeper; one that is over is stopping until that is done."""
        note = self._notes / f"{name}.json"
        mark = _read_mark(mark_of(note))
        if listed is not None and listed.state != "ended":
            self._touched.pop(name, None)
            return replace(listed, node="") if listed.state == "running" and mark is None else listed
        now_s = time.monotonic()
        if mark is None or (name in self._touched and self._is_silent(name, mark[1], now_s)):
            for path in (mark_of(note), end_of(note)):
                path.unlink(missing_ok=True)
            return listed
        if name in self._touched:  # not at first: the pilot has not closed the host yet, and one answer may be wrong
            end_of(note).touch()
        elif listed is None:
            self._touched[name] = (mark[1], now_s)
            return AllocationReport(job_id=mark[0], state="ending", word=FORGOTTEN)
        self._touched.setdefault(name, (mark[1], now_s))
        return AllocationReport(job_id=mark[0], state="stopping", word=FORGOTTEN if listed is None else listed.word)

    def _is_silent(self, name: str, touched_ns: int, now_s: float) -> bool:
        if self._touched[name][0] != touched_ns:
            self._touched[name] = (touched_ns, now_s)
        return now_s - self._touched[name][1] > SILENT_S

    def cancel(self, note: AllocationNote) -> None:
        """Cancel it."""
        self._slurm.output("scancel", note.job_id, env=without_allocation(os.environ))

    def launcher(self, note: AllocationNote) -> list[str]:
        """A step beside the others of the allocation."""
        return [self._slurm.program("srun"), f"--jobid={note.job_id}", "--overlap", "-N1", "-n1", "--quiet"]


def open_allocations(sbatch: str, notes: Path) -> SlurmAllocations:
    """The allocations of the Slurm of this machine, by the words of the configuration; `notes`: as of the pilot.

    Raises:
        UsageError: there is no Slurm here, or the words cannot be used.
    """
    try:
        words = shlex.split(sbatch)
    except ValueError as error:
        raise UsageError(f"`pilot.sbatch` is no list of words: {error}") from error
    return SlurmAllocations(find_installation(), words, notes)


def _read_mark(path: Path) -> tuple[str, int] | None:
    """The number of an allocation, and when its keeper touched it by the file system's clock; None without a mark."""
    try:
        with path.open() as file:  # a network file system reads the time anew when a file is opened (close-to-open)
            return file.read(), os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def _quoted(word: str) -> str:
    return '"$SLURM_JOB_ID"'.join(shlex.quote(part) if part else "" for part in word.split(ALLOCATION_ID)) or "''"
