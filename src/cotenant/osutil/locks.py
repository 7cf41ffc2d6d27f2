"""Locks between processes: flock(2), which the kernel releases when the holder ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator


class LockHeldError(Exception):
    """Another process holds the lock.

    Attributes:
        holder: its pid as it wrote it into the lock file, for people; `unknown` where it wrote none.
    """

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"process {holder} holds `{path}`")
        self.holder = holder


def try_lock(descriptor: int) -> bool:
    """Lock an open file exclusively, without waiting; False if it is locked through another open file.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def hold_lock(path: str | os.PathLike[str]) -> int:
    """Create the lock file `path` if need be, lock it, and write this process' pid into it; returns its descriptor.

    The lock ends when the descriptor is closed. The file stays: removing it would race with the next holder, who could
    lock a file that no longer has a name.

    Raises:
        LockHeldError: another process holds it.
        OSError: it cannot be created or locked.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_ours = try_lock(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    if not is_ours:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise LockHeldError(os.fspath(path), holder)
    # The pid is for people only: on a full disk the lock still holds.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Wait for the lock of a file that exists, and hold it within the block.

    Raises:
        OSError: there is no such file, or it may not be written.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
