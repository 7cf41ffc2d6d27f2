"""What is known of jobs on Slurm beyond what Slurm knows: promised, seen, energy, out of memory, resubmitted as.

One JSON file for each job, in a folder of the user that the nodes share with the login node, as they do the home.
Fields: `job_id`; `promised_bytes`, `shards`, `estimator`, `attempt`, `resubmission_of` from the submission;
`seen_bytes`, `energy_j`, `node` while it runs; `ended_at_s`, `exit_code`, `signal`, `oom`, `resubmitted_as` at its end.
The submission and the job write a file each, so that neither can overwrite what the other says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from cotenant.daemon.config.paths import private_folder, state_dir
from cotenant.osutil import atomic

RecordPart = Literal["submitted", "ran"]
MAX_RECORD_BYTES = 64 * 1024


class JobRecords:
    """The records of one user on one cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of_cluster(cls, name: str) -> JobRecords:
        """The records of this user; the folder is made with the first record."""
        return cls(state_dir() / "slurm" / "".join(c if c.isalnum() or c in "-_." else "_" for c in name).lstrip("."))

    def update(self, job_id: str, part: RecordPart, fields: Mapping[str, Any]) -> None:
        """Add `fields` to one part of the record of a job, which has one writer.

        Raises:
            OSError: it cannot be written. NotPermitted: the folder belongs to another user.
        """
        record = {**self._part(job_id, part), "job_id": job_id, **fields}
        private_folder(self.folder)
        atomic.write_text(self._path(job_id, part), json.dumps(record))

    def read(self, job_id: str) -> dict[str, Any]:
        """The record of a job; empty if there is none, or none that can be read."""
        return {**self._part(job_id, "submitted"), **self._part(job_id, "ran")}

    def _part(self, job_id: str, part: RecordPart) -> dict[str, Any]:
        try:
            found = json.loads(atomic.read_bytes(str(self._path(job_id, part)))[:MAX_RECORD_BYTES])
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def job_ids(self) -> list[str]:
        """Ids of the jobs that have a record, oldest first."""
        paths = self.folder.glob("*.json") if self.folder.is_dir() else ()
        names = {path.name.partition(".")[0] for path in paths}
        return sorted(names - {""}, key=lambda name: (len(name), name))

    def _path(self, job_id: str, part: RecordPart) -> Path:
        return self.folder / f"{''.join(c for c in job_id if c.isalnum() or c in '_')}.{part}.json"
