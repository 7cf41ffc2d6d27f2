"""A job's output, read from its files while they grow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from cotenant.daemon.auth.impersonation import open_as

CHUNK_BYTES = 64 * 1024
POLL_S = 0.1
"""Between two looks at a file that is followed. inotify would do without, but has no place in the standard library."""
POLL_AS_OWNER_S = 1.0
"""The same, until a file of another user is found: every such look takes a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLocation:
    """Where a job writes now.

    Attributes:
        path: of the stream asked for; None before the first attempt.
        attempt: its number, 0 before the first.
        is_final: nothing will be written any more, here or anywhere.
        owner_uid: whose rights it takes to read a file that the submitter named; None where the daemon's own do.
    """

    path: Path | None
    attempt: int
    is_final: bool
    owner_uid: int | None = None


async def follow(look: Callable[[], Awaitable[OutputLocation]], *, until_end: bool) -> AsyncIterator[bytes]:
    """What is in the output and, with `until_end`, what is added until it is final, over all attempts to come.

    `look` says where the output is now. A file that holds several attempts is not told twice.
    """
    file = _GrowingFile(None, None)
    try:
        while True:
            # Asked before reading: what was written before the end is then read before we leave.
            output = await look()
            if output.path != file.path:
                while piece := await file.read():
                    yield piece
                file.close()
                file = _GrowingFile(output.path, output.owner_uid)
            while piece := await file.read():
                yield piece
            if output.is_final or not until_end:
                return
            await asyncio.sleep(POLL_S if output.owner_uid is None or file.is_open else POLL_AS_OWNER_S)
    finally:
        file.close()


class _GrowingFile:
    """A file that may not be there yet, read from where the last reading ended."""

    def __init__(self, path: Path | None, owner_uid: int | None) -> None:
        self.path = path
        self._owner_uid = owner_uid
        self._descriptor: int | None = None
        self._offset = 0

    @property
    def is_open(self) -> bool:
        """Whether it has been found."""
        return self._descriptor is not None

    async def read(self) -> bytes:
        """The next piece; empty at the end so far, and where there is no file or it may not be read."""
        if self.path is None:
            return b""
        try:
            if self._descriptor is None:
                self._descriptor = await self._open(self.path)
            piece = os.pread(self._descriptor, CHUNK_BYTES, self._offset)
        except OSError:
            return b""
        self._offset += len(piece)
        return piece

    async def _open(self, path: Path) -> int:
        if self._owner_uid is not None:
            return await asyncio.to_thread(open_as, self._owner_uid, str(path))
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
