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
        self._used: Counter[int] = Counter()  # by uid: the files on the disk
        self._granted: Counter[int] = Counter()  # by uid: what running attempts may write
        self._grants: dict[AttemptRef, _Grant] = {}

    def set_used(self, by_uid: Mapping[int, int]) -> None:
        """What the files of each user take now."""
        with self._lock:
            self._used = Counter(by_uid)

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
        """The attempt has ended: what its files in `folder` take counts now, not what they might have."""
        with self._lock:
            grant = self._grants.pop(ref, None)
            if grant is not None:
                self._granted[grant.uid] -= grant.size_bytes
                self._used[grant.uid] += _size_bytes(folder)


def _size_bytes(folder: Path) -> int:
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
    except OSError:  # removed: it takes nothing
        return 0
