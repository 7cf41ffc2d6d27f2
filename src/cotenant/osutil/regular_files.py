"""Reading a file that somebody else names: only a regular file of limited size.

A module of its own, since the command line and the tracer both read scripts that a user names.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def read_regular_file(path: Path, *, max_bytes: int) -> bytes | None:
    """The content; None if the file cannot be read, is larger, or is a pipe or a device, which is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            text = file.read(max_bytes + 1)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return text if len(text) <= max_bytes else None
