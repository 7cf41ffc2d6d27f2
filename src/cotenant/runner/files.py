"""Files that are complete or absent."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

RESERVED_BYTES = 4096


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None if there is no such file or it holds something else."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def reserve(path: Path) -> None:
    """Take the disk blocks of a file to be written later, so that a disk that fills up cannot stop it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVED_BYTES)
        finally:
            os.close(descriptor)


def write_json(path: Path, value: dict[str, Any], *, via: Path | None = None) -> None:
    """Put `value` in `path`: durable when this returns, and nobody ever reads half of it.

    `via` is a file in the same folder to write into first; one that was reserved keeps its blocks.

    Raises:
        OSError: it could not be written; an older `path` is untouched.
    """
    draft = via or path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        data = json.dumps(value, indent=1).encode().ljust(RESERVED_BYTES if via else 0)
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.replace(path)
    _sync_folder(path.parent)


def claim(path: Path, value: dict[str, Any]) -> bool:
    """Create `path` holding `value`; False if somebody has done so before. Only one caller ever gets True.

    It is durable with the next `write_json` into this folder, which comes before anything is started.

    Raises:
        OSError: the file cannot be created at all.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(value))
    try:
        # A link appears at once with its content, and fails if the name is taken.
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
