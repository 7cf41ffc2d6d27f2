"""Disk space set aside, so that a full disk refuses submissions and not cancellations.

A module of its own: it deals with files and knows nothing of SQLite.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

RESERVED_BYTES = 8 * 2**20
"""A cancellation takes some 12 KiB of SQLite's write-ahead log until its next checkpoint: room for 600 of them."""
HEADROOM_BYTES = 2 * 2**20
"""To be free besides, so that what comes next, the folders of some 50 attempts, does not meet a full disk at once."""


class DiskReserve:
    """A file of `RESERVED_BYTES` that is removed when its space is needed.

    Attributes:
        is_released: the space was given up, and has not been set aside again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_released = False

    def allocate(self) -> bool:
        """Set the space aside; False if the disk has not enough."""
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, RESERVED_BYTES + HEADROOM_BYTES)
                os.ftruncate(descriptor, RESERVED_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                self._remove()
                return False
            return True  # this file system cannot set space aside, and nothing is gained by retrying
        self.is_released = False
        return True

    def has_headroom(self) -> bool:
        """Whether the disk has room beside this space, which stays as it is."""
        try:
            found = os.statvfs(self._path.parent)
        except OSError:
            return False
        return found.f_bavail * found.f_frsize >= HEADROOM_BYTES

    def release(self) -> bool:
        """Give the space up; False if there is none."""
        if self.is_released or not self._path.exists():
            return False
        self._remove()
        self.is_released = True
        return True

    def _remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
