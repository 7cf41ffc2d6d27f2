"""Removes what done jobs left on the daemon's disk: output in their attempt folders, estimate logs, environments."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from cotenant.core.job import Job
from cotenant.core.ports import Journal
from cotenant.engines.output_budget import OutputBudget, tree_size_bytes

MIN_REFRESH_S = 1.0
REFRESH_SHARE = 0.05
"""The sums of output that a quota is checked with are made anew this often: at most this share of the time."""


class OutputStore:
    """The folders of attempts below `state_dir`, where the local engine stores them; other engines have none here.

    `budget` limits their files, and learns their sizes from here.
    """

    def __init__(
        self, state_dir: Path, budget: OutputBudget | None = None, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.budget = budget or OutputBudget()
        self._attempts = state_dir / "attempts"
        self._estimates = state_dir / "estimates"
        self._lock = threading.Lock()
        self._now = now
        self._refresh_due_s = 0.0

    def size_bytes(self, job_id: int) -> int:
        """How much the files of a job take on the disk."""
        return tree_size_bytes(self._attempts / str(job_id))

    def remove(self, job_id: int, uid: int) -> int:
        """Remove the files of a job of `uid`; returns how many bytes they took."""
        size_bytes = self.size_bytes(job_id)
        shutil.rmtree(self._attempts / str(job_id), ignore_errors=True)
        for kind in ("log", "profile.json"):
            (self._estimates / f"{job_id}.{kind}").unlink(missing_ok=True)
        self.budget.forget(job_id, uid)
        return size_bytes

    def take_measure(self) -> bool:
        """Whether the caller is to call `measure` now; until it has, others go by the sums of before."""
        with self._lock:
            now_s = self._now()
            if now_s < self._refresh_due_s:
                return False
            self._refresh_due_s = now_s + MIN_REFRESH_S
            return True

    def measure(self, owners: Mapping[int, int]) -> None:
        """Measure the files of all jobs for the budget; `owners` are their uids, by id.

        Call it in a thread: it walks all folders.
        """
        began_s = self._now()
        names = os.listdir(self._attempts) if self._attempts.is_dir() else ()  # noqa: PTH208 (names only)
        numbers = [int(name) for name in names if name.isdecimal()]
        by_job = {number: self.size_bytes(number) for number in numbers if number in owners}
        self.budget.set_sizes(by_job, owners)
        ended_s = self._now()
        with self._lock:
            self._refresh_due_s = ended_s + max(MIN_REFRESH_S, (ended_s - began_s) / REFRESH_SHARE)


def prune(jobs: Iterable[Job], store: OutputStore, journal: Journal, *, dry_run: bool) -> tuple[int, int]:
    """Remove what done `jobs` left; returns (number of jobs, bytes of files). Their records and events stay.

    Raises:
        JournalError: the environments could not be dropped; the files are gone.
    """
    pruned = journal.pruned_jobs()
    chosen = [job for job in jobs if job.is_done and job.id not in pruned]
    size_bytes = sum(store.size_bytes(job.id) if dry_run else store.remove(job.id, job.spec.uid) for job in chosen)
    if not dry_run:
        journal.prune([job.id for job in chosen])
    return len(chosen), size_bytes
