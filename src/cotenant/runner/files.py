"""Files that are complete or absent; the runner's own copy of `osutil.atomic`."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

RESERVED = ".result.reserved"
RESERVED_BYTES = 4096
READ_BYTES = 64 * 1024


def read_json(path: str) -> dict[str, Any] | None:
    """The object in `path`; None if there is no such file or it holds something else."""
    try:
        value = json.loads(read_bytes(path))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def read_bytes(path: str) -> bytes:
    """The content of `path`, in half the time of a file object, which queries the size and the position first.

    Raises:
        OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = piece = os.read(descriptor, READ_BYTES)
        while piece:
            data += (piece := os.read(descriptor, READ_BYTES))
        return data
    finally:
        os.close(descriptor)


def reserve(path: str) -> None:
    """Allocate the disk blocks of a file to be written later, so that a full disk cannot prevent it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVED_BYTES)
        finally:
            os.close(descriptor)


def fill(path: str, value: dict[str, Any]) -> None:
    """Put `value` into a reserved file until its final content is written.

    Raises:
        OSError: it could not be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(value).encode().ljust(RESERVED_BYTES))
    finally:
        os.close(descriptor)


def write_json(path: str, value: dict[str, Any], *, via: str | None = None, durable: bool = True) -> None:
    """Write `value` to `path` atomically; if `durable`, it is on disk when this returns.

    `via` is a file in the same folder to write into first; a reserved one keeps its blocks. One fsync, after the
    rename, brings the name to the disk too, and earlier changes of names: ext4, XFS and btrfs log them in order.

    Raises:
        OSError: it could not be written, or not durably; `path` has its old content or the new.
    """
    draft = via or f"{path}.{os.getpid()}.draft"
    data = json.dumps(value).encode().ljust(RESERVED_BYTES if via else 0)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        os.replace(draft, path)
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def claim(path: str, value: dict[str, Any]) -> bool:
    """Create `path` with `value`; False if it exists. Of several callers exactly one gets True.

    It is on disk with the next durable `write_json` into this folder, which comes before anything is started.

    Raises:
        OSError: the file cannot be created at all.
    """
    draft = f"{path}.{os.getpid()}.draft"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(value).encode())
        # A link appears together with its content, and link(2) fails if the name is taken.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.close(descriptor)
        os.unlink(draft)
    return True


def sync(path: str) -> None:
    """Bring to the disk a file that was written with `durable=False`, and its name.

    Raises:
        OSError: the disk fails, or there is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
