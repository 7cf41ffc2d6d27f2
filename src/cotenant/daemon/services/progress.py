"""Step rates of jobs, read from files that the jobs, or the runner that parses their output, write to.

`$COTENANT_PROGRESS` names a job's file, which belongs to the job's user. The folder is the daemon's, so no user can put
a link or a pipe in its place. The content is a claim of the user about the user's own job, and is parsed as untrusted.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef
from cotenant.daemon.services.base import AttemptService, RunningJobs, StepRate

logger = logging.getLogger(__name__)

MAX_BYTES = 128
CLEANUP_AFTER = 64
"""New files between two searches for files of jobs that are done."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ProgressService(AttemptService):
    """Creates a progress file per job in `folder` and computes step rates from it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._text = str(folder)  # every launch makes a file; joining paths by `pathlib` costs more than that
        self._last: dict[AttemptRef, tuple[float, float]] = {}
        self._made = CLEANUP_AFTER  # an earlier daemon may have left some

    def prepare(self, spec: JobSpec, placement: Placement) -> Mapping[str, str]:
        path = self.create_file(placement.job_id, spec.uid)
        return {} if path is None else {"COTENANT_PROGRESS": path}

    def create_file(self, job_id: int, uid: int) -> str | None:
        """Create an empty file of user `uid` for the next attempt of a job; None if that fails."""
        path = f"{self._text}/{job_id}"
        try:
            try:
                descriptor = os.open(path, _NEW, 0o600)
            except (FileExistsError, FileNotFoundError):  # an earlier attempt's file, or no folder yet
                self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108
                descriptor = os.open(path, _NEW, 0o600)
            try:
                if uid != os.geteuid():
                    os.fchown(descriptor, uid, -1)
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.warning("cannot create a progress file", extra={"fields": {"job": job_id, "why": str(error)}})
            return None
        self._made += 1
        return path

    def observe(self, ref: AttemptRef) -> StepRate | None:
        """Return the rate since the last call that returned one; None if no step was made since."""
        record = self._read(ref.job_id)
        before = self._last.get(ref)
        if record is None or record == before:
            return None
        if before is None or record[0] < before[0] or record[1] <= before[1]:
            self._last[ref] = record  # the first record, or the script restarted its count
            return None
        if record[0] == before[0]:
            return None
        self._last[ref] = record
        span_s = record[1] - before[1]
        return StepRate((record[0] - before[0]) / span_s, span_s)

    def reconcile(self, running: RunningJobs) -> None:
        """Remove files of jobs that do not run, once `CLEANUP_AFTER` new ones were created."""
        if self._made >= CLEANUP_AFTER:
            self._remove_all_but(job.id for job in running())

    def _remove_all_but(self, job_ids: Iterable[int]) -> None:
        in_use = set(job_ids)
        self._made = 0
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if path.name.isdigit() and int(path.name) not in in_use:
                    path.unlink(missing_ok=True)
        for ref in [ref for ref in list(self._last) if ref.job_id not in in_use]:
            self._last.pop(ref, None)

    def _read(self, job_id: int) -> tuple[float, float] | None:
        """Return the number of steps and the job's clock in seconds; None if the file is absent or malformed."""
        try:
            descriptor = os.open(f"{self._text}/{job_id}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            text = os.read(descriptor, MAX_BYTES)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        line, end, _ = text.partition(b"\n")
        words = line.split()
        if not end or len(words) != 2:
            return None
        with contextlib.suppress(ValueError):
            count, at_s = float(words[0]), float(words[1])
            if 0 <= count < 1e15 and 0 <= at_s < 1e15:
                return count, at_s
        return None
