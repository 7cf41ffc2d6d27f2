"""The files that a job writes its output to: their size limit, and what was added to them.

They are opened with the rights of who named them: the submitter chose the name, which may be a pipe by now, which would
block us, or the file of another user.

A file that exceeds half of the limit is rotated as by logrotate's `copytruncate`: its newest half goes to `FILE.1`, and
the file is truncated to what it held before the attempt. The job goes on writing to the same file, because it appends
(open(2), O_APPEND); what it writes between the copy and the truncation is lost.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping

from cotenant.runner import privileges

CHECK_S = 1.0
"""Between two looks at the sizes. What a job writes in that time may exceed the limit."""


class OutputFiles:
    """The output files of one attempt.

    `owners`: the user as whom each file is opened, by path; None for the runner's own. `max_bytes`: of each file with
    its rotated half, beyond what it held before; None: no limit.
    """

    def __init__(self, owners: Mapping[str, int | None], max_bytes: int | None = None) -> None:
        self._owners = owners
        self._rotate_bytes = None if max_bytes is None else max(1, max_bytes // 2)
        self._begins = {path: _size(path, uid) for path, uid in owners.items()}
        self._rotated: set[str] = set()

    @property
    def is_limited(self) -> bool:
        """Whether `enforce_limit` has anything to do."""
        return self._rotate_bytes is not None

    def enforce_limit(self) -> None:
        """Rotate the files that are too large; errors are ignored: a job may remove or replace its files."""
        if self._rotate_bytes is None:
            return
        for path, uid in self._owners.items():
            with contextlib.suppress(OSError, ValueError), privileges.acting_as(uid):
                if os.stat(path).st_size - self._begins[path] > self._rotate_bytes:
                    self._rotate(path, self._rotate_bytes)

    def _rotate(self, path: str, bytes_per_half: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                return
            begin = min(self._begins[path], found.st_size)
            # The limit holds although the copy fails, as it does on a full disk.
            with contextlib.suppress(OSError):
                _copy(descriptor, f"{path}.1", max(begin, found.st_size - bytes_per_half), found.st_size)
                self._rotated.add(path)
            os.ftruncate(descriptor, begin)
        finally:
            os.close(descriptor)

    def tails(self, max_bytes: int) -> list[str]:
        """Of each file, the last `max_bytes` of what the attempt added; "" where that cannot be read."""
        found = []
        for path, begin in self._begins.items():
            uid = self._owners[path]
            before = _tail(f"{path}.1", 0, uid, max_bytes) if path in self._rotated else ""
            found.append((before + _tail(path, begin, uid, max_bytes))[-max_bytes:])
        return found


def _size(path: str, uid: int | None) -> int:
    try:
        with privileges.acting_as(uid):  # root may not read NFS folders (root_squash)
            return os.stat(path).st_size
    except (OSError, ValueError):
        return 0


def _copy(source: int, path: str, begin: int, end: int) -> None:
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        while begin < end and (sent := os.sendfile(target, source, begin, end - begin)):
            begin += sent
    finally:
        os.close(target)


def _tail(path: str, begin: int, uid: int | None, max_bytes: int) -> str:
    """The last part of what was added to `path` after its first `begin` bytes, as far as the user `uid` may read it."""
    try:
        with privileges.acting_as(uid):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            size = os.lseek(descriptor, 0, os.SEEK_END)
            # A log that shrank was truncated by the job: all of it belongs to this attempt.
            os.lseek(descriptor, max(begin if begin <= size else 0, size - max_bytes), os.SEEK_SET)
            return _read(descriptor, max_bytes).decode(errors="replace") if size else ""
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        return ""


def _read(descriptor: int, max_bytes: int) -> bytes:
    data = b""
    while len(data) < max_bytes and (piece := os.read(descriptor, max_bytes - len(data))):
        data += piece
    return data
