"""How large the output files of each attempt may get, so that one user cannot fill the disk.

An attempt may take a share of what is left to its user, so the next one always gets something, and all of them
together never exceed the limit by more than `MIN_FILE_BYTES` for each file.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.ports import AttemptRef
from cotenant.core.units import MiB

SHARE = 1 / 16
"""Of what is left to a user, for each of the two files of an attempt."""
MIN_FILE_BYTES = MiB
"""A job whose user has nothing left can still say why it failed."""


@dataclass(frozen=True, slots=True)
class _Grant:
    uid: int
    size_bytes: int


class OutputBudget:
    """Limits in bytes; None: no limit. Methods may be called from any thread.

    Attributes:
        max_file_bytes: of one file with its rotated half.
        max_user_bytes: of all files of one user.
    """

    def __init__(self, max_file_bytes: int | None = None, max_user_bytes: int | None = None) -> None:
        self.max_file_bytes = max_file_bytes
        self.max_user_bytes = max_user_bytes
        self._lock = threading.Lock()
        self._by_job: dict[int, int] = {}  # the files on the disk
        self._used: Counter[int] = Counter()  # by uid: the sums of `_by_job`
        self._granted: Counter[int] = Counter()  # by uid: what running attempts may write
        self._grants: dict[AttemptRef, _Grant] = {}

    def used_bytes(self, uid: int) -> int:
        """What the files of a user take: as last measured, and what attempts that ended since then wrote."""
        with self._lock:
            return self._used[uid]

    def set_sizes(self, by_job: Mapping[int, int], owners: Mapping[int, int]) -> None:
        """What the files of each job take now; `owners` are the uids of all jobs, by id."""
        used: Counter[int] = Counter()
        for job_id, size_bytes in by_job.items():
            used[owners[job_id]] += size_bytes
        with self._lock:
            self._by_job = dict(by_job)
            self._used = used

    def forget(self, job_id: int, uid: int) -> None:
        """The files of a job are gone."""
        with self._lock:
            self._used[uid] -= self._by_job.pop(job_id, 0)

    def grant(self, ref: AttemptRef, uid: int) -> int | None:
        """The limit for each of the two output files of a new attempt; None: no limit."""
        if self.max_user_bytes is None:
            return self.max_file_bytes
        with self._lock:
            left_bytes = self.max_user_bytes - self._used[uid] - self._granted[uid]
            size_bytes = max(MIN_FILE_BYTES, int(left_bytes * SHARE))
            if self.max_file_bytes is not None:
                size_bytes = min(size_bytes, self.max_file_bytes)
            self._grants[ref] = _Grant(uid, 2 * size_bytes)
            self._granted[uid] += 2 * size_bytes
        return size_bytes

    def release(self, ref: AttemptRef, folder: Path) -> None:
        """The attempt has ended: what its files take counts now, not what they might have.

        `folder` is the attempt's; the folder above it holds those of all attempts of the job.
        """
        size_bytes = tree_size_bytes(folder.parent)
        with self._lock:
            grant = self._grants.pop(ref, None)
            if grant is not None:
                self._granted[grant.uid] -= grant.size_bytes
                self._used[grant.uid] += size_bytes - self._by_job.get(ref.job_id, 0)
                self._by_job[ref.job_id] = size_bytes


def tree_size_bytes(folder: Path) -> int:
    """How much the files below a folder take on the disk; nothing if it is not there."""
    found = 0
    folders: list[str | Path] = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                listed = list(entries)
        except OSError:  # removed meanwhile
            continue
        for entry in listed:
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                else:
                    found += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:
                continue
    return found
