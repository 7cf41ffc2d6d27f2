"""Streams the output of a job from its files while they grow."""

from __future__ import annotations

import asyncio
import contextlib
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

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


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


async def follow(
    locate: Callable[[], Awaitable[OutputLocation]], *, until_end: bool, tail_bytes: int | None = None
) -> AsyncIterator[bytes]:
    """Yield the output so far and, with `until_end`, what is appended until it is final, over all later attempts.

    `locate` returns where the output is now. A file shared by several attempts is read once. Of the file of the first
    attempt only the last `tail_bytes` are read.
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
                file = _GrowingFile(output.path, output.owner_uid, tail_bytes)
                tail_bytes = None
            while piece := await file.read():
                yield piece
            if output.is_final or not until_end:
                return
            await asyncio.sleep(POLL_S if output.owner_uid is None or file.is_open else POLL_AS_OWNER_S)
    finally:
        file.close()


class _GrowingFile:
    """A file that may not exist yet, read from where the last read ended; at first, from its last `tail_bytes`.

    What the runner rotated to `FILE.1` before comes first. Where it rotates between two reads, what the job wrote in
    between is not read.
    """

    def __init__(self, path: Path | None, owner_uid: int | None, tail_bytes: int | None = None) -> None:
        self.path = path
        self._tail_bytes = tail_bytes
        self._owner_uid = owner_uid
        self._descriptor: int | None = None
        self._offset = 0
        self._rotated: int | None = None
        self._rotated_offset = 0

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
                await self._open(self.path)
            return self._read_rotated() or self._read_newest()
        except OSError:
            return b""

    def _read_rotated(self) -> bytes:
        if self._rotated is None:
            return b""
        piece = os.pread(self._rotated, CHUNK_BYTES, self._rotated_offset)
        self._rotated_offset += len(piece)
        if not piece:
            os.close(self._rotated)
            self._rotated = None
        return piece

    def _read_newest(self) -> bytes:
        assert self._descriptor is not None
        piece = os.pread(self._descriptor, CHUNK_BYTES, self._offset)
        if not piece and os.fstat(self._descriptor).st_size < self._offset:
            self._offset = 0  # the runner rotated it, or the job truncated it
        self._offset += len(piece)
        return piece

    async def _open(self, path: Path) -> None:
        if self._owner_uid is not None:
            self._descriptor = await _open_in_thread(self._owner_uid, str(path))
        else:
            self._descriptor = os.open(path, _FLAGS)
            with contextlib.suppress(FileNotFoundError):
                self._rotated = os.open(f"{path}.1", _FLAGS)
        if self._tail_bytes is not None:
            size_bytes = os.fstat(self._descriptor).st_size
            self._offset = max(0, size_bytes - self._tail_bytes)
            if self._rotated is not None:
                missing_bytes = max(0, self._tail_bytes - size_bytes)
                self._rotated_offset = max(0, os.fstat(self._rotated).st_size - missing_bytes)

    def close(self) -> None:
        """Close the file."""
        for descriptor in (self._descriptor, self._rotated):
            if descriptor is not None:
                os.close(descriptor)
        self._descriptor = self._rotated = None


async def _open_in_thread(uid: int, path: str) -> int:
    """`open_as` in a thread; if the reader goes away meanwhile, the descriptor is closed."""
    opening = asyncio.get_running_loop().run_in_executor(None, open_as, uid, path)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close)
        raise


def _close(opening: asyncio.Future[int]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result())
