"""How many steps jobs have made, from the files that they, or a watcher of their output, write to.

A job's file is named in `$COTENANT_PROGRESS` and belongs to its user; the folder is ours, so what stands in its place
is no link and no pipe. What it says is the user's word about the user's own job, and is read as such.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from cotenant.core.ports import AttemptRef

logger = logging.getLogger(__name__)

MAX_BYTES = 128
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
CLEANUP_AFTER = 64
"""So many new files, and it is time to look for those that nobody needs."""


class ProgressFiles:
    """The files of all jobs in one folder, which lives as long as the machine is up.

    `make` and `tidy` are called in the loop's thread, `rate` in the monitor's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: dict[AttemptRef, tuple[float, float]] = {}
        self._made = CLEANUP_AFTER  # there may be some of an earlier daemon

    @property
    def needs_cleanup(self) -> bool:
        """Whether it is time to `tidy`."""
        return self._made >= CLEANUP_AFTER

    def make(self, job_id: int, uid: int) -> Path | None:
        """An empty file for the next attempt of a job of user `uid`; None where there can be none."""
        path = self._folder / str(job_id)
        try:
            try:
                descriptor = os.open(path, _NEW, 0o600)
            except (FileExistsError, FileNotFoundError):  # of an earlier attempt; the first in this folder
                self._folder.mkdir(mode=0o711, parents=True, exist_ok=True)
                path.unlink(missing_ok=True)
                descriptor = os.open(path, _NEW, 0o600)
            try:
                if uid != os.geteuid():
                    os.fchown(descriptor, uid, -1)
            finally:
                os.close(descriptor)
        except OSError as error:
            logger.warning("no file for a job's progress", extra={"fields": {"job": job_id, "why": str(error)}})
            return None
        self._made += 1
        return path

    def rate(self, ref: AttemptRef) -> tuple[float, float] | None:
        """Steps a second, and over how many seconds, since the last call that gave some; None where none were made."""
        told = self._read(ref.job_id)
        before = self._last.get(ref)
        if told is None or told == before:
            return None
        if before is None or told[0] < before[0] or told[1] <= before[1]:
            self._last[ref] = told  # it begins, or begins anew
            return None
        if told[0] == before[0]:
            return None
        self._last[ref] = told
        span_s = told[1] - before[1]
        return (told[0] - before[0]) / span_s, span_s

    def _read(self, job_id: int) -> tuple[float, float] | None:
        """Steps made and the reading of the job's clock; None where there is no file or something else in it."""
        try:
            descriptor = os.open(self._folder / str(job_id), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
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

    def tidy(self, live: Iterable[int]) -> None:
        """Remove the files of jobs that do not run."""
        kept = set(live)
        self._made = 0
        with contextlib.suppress(OSError):
            for path in self._folder.iterdir():
                if path.name.isdigit() and int(path.name) not in kept:
                    path.unlink(missing_ok=True)
        for ref in [each for each in list(self._last) if each.job_id not in kept]:
            self._last.pop(ref, None)
