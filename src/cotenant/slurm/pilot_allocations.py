"""Allocations of Slurm for a pilot, by sbatch, squeue, scancel and srun."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.hosts.allocations import ALLOCATION_ID, AllocationNote, AllocationReport, AllocationState
from cotenant.slurm.installation import SlurmInstallation, find_installation, split_rows, without_allocation

COLUMNS = ("job_id", "name", "state", "node", "reason")
FORMAT = "%A|%j|%T|%N|%r"
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


class SlurmAllocations:
    """Allocations of one node each, with the `words` that sbatch gets.

    Raises:
        UsageError: the words make an array.
    """

    manager, noun = "Slurm", "job"

    def __init__(self, installation: SlurmInstallation, words: Sequence[str]) -> None:
        if any(word.startswith(("-a", "--array", "--wrap")) for word in words):
            raise UsageError("`pilot.sbatch` has --array or --wrap, wanted options of one allocation")
        self._slurm, self._words = installation, list(words)

    def request(self, name: str, command: list[str], log: Path) -> str:
        """Submit an allocation that runs `command`."""
        script = "exec " + " ".join(_quoted(word) for word in command)
        ours = ("--parsable", "--no-requeue", "-N1", "-J", name, "-o", str(log), "-e", str(log), "--wrap", script)
        answer = self._slurm.output("sbatch", *self._words, *ours, env=without_allocation(os.environ))
        return answer.strip().partition(";")[0]

    def report(self, names: Iterable[str]) -> Mapping[str, AllocationReport]:
        """What squeue lists, also of those that ended in the last minutes (MinJobAge)."""
        words = ("-h", "-t", "all", "-u", str(os.getuid()), "-n", ",".join(names), "-o", FORMAT)
        rows = split_rows(self._slurm.output("squeue", *words, env=without_allocation(os.environ)), COLUMNS)
        return {
            row["name"]: AllocationReport(
                job_id=row["job_id"],
                state=STATES.get(row["state"], "ending"),
                word=row["state"],
                reason=row["reason"],
                node=row["node"],
            )
            for row in rows
        }

    def cancel(self, note: AllocationNote) -> None:
        """Cancel it."""
        self._slurm.output("scancel", note.job_id, env=without_allocation(os.environ))

    def launcher(self, note: AllocationNote) -> list[str]:
        """A step beside the others of the allocation."""
        return [self._slurm.program("srun"), f"--jobid={note.job_id}", "--overlap", "-N1", "-n1", "--quiet"]


def open_allocations(sbatch: str) -> SlurmAllocations:
    """The allocations of the Slurm of this machine, by the words of the configuration.

    Raises:
        UsageError: there is no Slurm here, or the words cannot be used.
    """
    try:
        words = shlex.split(sbatch)
    except ValueError as error:
        raise UsageError(f"`pilot.sbatch` is no list of words: {error}") from error
    return SlurmAllocations(find_installation(), words)


def _quoted(word: str) -> str:
    return '"$SLURM_JOB_ID"'.join(shlex.quote(part) if part else "" for part in word.split(ALLOCATION_ID)) or "''"
