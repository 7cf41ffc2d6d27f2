"""What of a pack is done: one folder for a list of jobs, which outlives allocations and machines.

In it are `done-PART.jsonl`, one line for each job that has ended for good, and the jobs' output. A job is known by the
text of its line and, if the same text stands there several times, by which of them it is; so a list may grow meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cotenant.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLine:
    """A line of the list.

    Attributes:
        number: from 1.
        text: as it stands there.
        key: what it is known by.
    """

    number: int
    text: str
    key: str


def read_lines(text: str) -> list[PackLine]:
    """The jobs of a list: its lines without empty ones and those that begin with `#`."""
    seen: Counter[str] = Counter()
    lines = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        seen[stripped] += 1
        digest = hashlib.sha256(stripped.encode(errors="surrogateescape")).hexdigest()[:16]
        lines.append(PackLine(number=number, text=stripped, key=f"{digest}-{seen[stripped]}"))
    return lines


class PackProgress:
    """The folder of a pack, held by this process for one part of its jobs.

    Raises:
        UsageError: another process works on the same part.
    """

    def __init__(self, folder: Path, part: tuple[int, int] = (0, 1)) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        # Without a buffer, which would hold what a full disk has not taken.
        self._file: IO[bytes] = (folder / f"done-{part[0]}-{part[1]}.jsonl").open("ab", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UsageError(
                f"another `cotenant pack` works in `{folder}`", hint="wait for it, or name another --folder"
            ) from error

    def done(self) -> dict[tuple[str, int | None], dict[str, Any]]:
        """The jobs that have ended for good, of all parts, by key and index in an array."""
        found = {}
        for path in sorted(self.folder.glob("done-*.jsonl")):
            for line in path.read_bytes().splitlines():
                try:
                    entry = json.loads(line)
                    found[str(entry["key"]), entry["index"]] = entry
                except (ValueError, KeyError, TypeError):
                    continue  # the last line of a writer that was killed
        return found

    def record(self, entries: Sequence[dict[str, Any]]) -> None:
        """Add jobs that have ended, on disk when this returns.

        Raises:
            OSError: the disk is full, or fails; a part may be there, and a later call may repeat it.
        """
        # A writer that was killed may have left half a line, which must not swallow this one.
        rest = ("".join(f"\n{json.dumps(entry)}" for entry in entries) + "\n").encode()
        while rest:
            rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Let others work on it."""
        self._file.close()
