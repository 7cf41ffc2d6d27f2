"""Streams the output of a job from its files while they grow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from cotenant.daemon.auth.impersonation import open_as

CHUNK_BYTES = 64 * 1024
POLL_S = 0.1
"""Polling interval of a followed file. The standard library has no inotify."""
POLL_AS_OWNER_S = 1.0
"""The same while a file of another user does not exist yet: each poll starts a process as that user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLocation:
    """The file that a job writes a stream to at the moment.

    Attributes:
        path: None before the first attempt.
        attempt: number of the attempt; 0 before the first.
        is_final: nothing will be written any more, by any attempt.
        owner_uid: the user as whom to open a file that the submitter named; None: the daemon can read it.
    """

    path: Path | None
    attempt: int
    is_final: bool
    owner_uid: int | None = None


async def follow(locate: Callable[[], Awaitable[OutputLocation]], *, until_end: bool) -> AsyncIterator[bytes]:
    """Yield the output so far and, with `until_end`, what is appended until it is final, over all later attempts.

    `locate` returns where the output is now. A file shared by several attempts is read once.
    """
    file = _GrowingFile(None, None)
    try:
        while True:
            # Locate before reading: if the output is final now, the reads below see all of it.
            output = await locate()
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
    """A file that may not exist yet, read from where the last read ended."""

    def __init__(self, path: Path | None, owner_uid: int | None) -> None:
        self.path = path
        self._owner_uid = owner_uid
        self._descriptor: int | None = None
        self._offset = 0

    @property
    def is_open(self) -> bool:
        """Whether the file was found."""
        return self._descriptor is not None

    async def read(self) -> bytes:
        """Return the next piece; empty at the end of the file, and if it does not exist or may not be read."""
        if self.path is None:
            return b""
        try:
            if self._descriptor is None:
                self._descriptor = await self._open(self.path)
            piece = os.pread(self._descriptor, CHUNK_BYTES, self._offset)
            if not piece and os.fstat(self._descriptor).st_size < self._offset:
                self._offset = 0  # the runner rotated it, or the job truncated it
        except OSError:
            return b""
        self._offset += len(piece)
        return piece

    async def _open(self, path: Path) -> int:
        if self._owner_uid is not None:
            return await asyncio.to_thread(open_as, self._owner_uid, str(path))
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
