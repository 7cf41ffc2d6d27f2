"""A job's output, read from its files while they grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 64 * 1024
LOOK_S = 0.1
"""Between two looks at a file that is followed. inotify would do without, but has no place in the standard library."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where a job writes now.

    Attributes:
        path: of the stream asked for; None before the first attempt.
        attempt: its number, 0 before the first.
        is_final: nothing will be written any more, here or anywhere.
    """

    path: Path | None
    attempt: int
    is_final: bool


async def follow(look: Callable[[], Awaitable[Output]], *, until_end: bool) -> AsyncIterator[bytes]:
    """What is in the output and, with `until_end`, what is added until it is final, over all attempts to come.

    `look` says where the output is now. A file that holds several attempts is not told twice.
    """
    path: Path | None = None
    offset = 0
    while True:
        # Asked before reading: what was written before the end is then read before we leave.
        output = await look()
        if output.path != path:
            if path is not None:
                while piece := _read(path, offset):
                    offset += len(piece)
                    yield piece
            path, offset = output.path, 0
        while path is not None and (piece := _read(path, offset)):
            offset += len(piece)
            yield piece
        if output.is_final or not until_end:
            return
        await asyncio.sleep(LOOK_S)


def _read(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(CHUNK_BYTES)
    except FileNotFoundError:
        return b""
