"""Short jobs that note their runs in files, so that a run that the journal does not know, or knows twice, is found.

A module of its own: two programs that kill the daemon submit them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class RunNotes:
    """A folder with a file for each job, to which each of its runs appends `start` and `end`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()

    def command(self, sleep_s: float = 0.0) -> tuple[str, ...]:
        """The command of such a job."""
        note = f"{self._folder}/$COTENANT_JOB_ID"
        pause = f"sleep {sleep_s}; " if sleep_s else ""
        return "/bin/sh", "-c", f"echo start >> {note}; {pause}echo end >> {note}"

    def lost(self, promised: Iterable[int], views: Mapping[int, Mapping[str, Any]]) -> list[int]:
        """Of the jobs that were acknowledged, those that are unknown or have not completed."""
        return [job_id for job_id in promised if job_id not in views or views[job_id]["state"] != "COMPLETED"]

    def run_twice(self, job_ids: Iterable[int]) -> list[int]:
        """The jobs that have not run once and to the end."""
        return [job_id for job_id in job_ids if (self._folder / str(job_id)).read_text().split() != ["start", "end"]]
