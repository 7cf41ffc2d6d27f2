"""Files that are complete or absent."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

RESERVED = ".result.reserved"
RESERVED_BYTES = 4096


def read_json(path: str) -> dict[str, Any] | None:
    """The object in `path`; None if there is no such file or it holds something else."""
    try:
        with open(path, "rb", buffering=0) as file:
            value = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def reserve(path: str) -> None:
    """Take the disk blocks of a file to be written later, so that a disk that fills up cannot stop it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVED_BYTES)
        finally:
            os.close(descriptor)


def fill(path: str, value: dict[str, Any]) -> None:
    """Put `value` into a file that was reserved, for as long as it is not written for good.

    Raises:
        OSError: it could not be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(value).encode().ljust(RESERVED_BYTES))
    finally:
        os.close(descriptor)


def write_json(path: str, value: dict[str, Any], *, via: str | None = None, durable: bool = True) -> None:
    """Put `value` in `path`: nobody ever reads half of it, and if `durable` it is on disk when this returns.

    `via` is a file in the same folder to write into first; one that was reserved keeps its blocks. One fsync, after
    the file has its name, brings the name to the disk too, and those that were given before it: ext4, XFS and btrfs
    write what happened to names in order.

    Raises:
        OSError: it could not be written, or perhaps not durably; an older `path` is whole or replaced.
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
    """Create `path` holding `value`; False if somebody has done so before. Only one caller ever gets True.

    It is durable with the next `write_json` into this folder, which comes before anything is started.

    Raises:
        OSError: the file cannot be created at all.
    """
    draft = f"{path}.{os.getpid()}.draft"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, json.dumps(value).encode())
        # A link appears at once with its content, and fails if the name is taken.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.close(descriptor)
        os.unlink(draft)
    return True


def sync(path: str) -> None:
    """Make durable a file that was written without, and its name.

    Raises:
        OSError: the disk fails, or there is no such file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
