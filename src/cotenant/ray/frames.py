"""What goes over the socket between a bridge to Ray and its relays.

A module of its own: `link` is started for every host and imports nothing heavier than this.
"""

from __future__ import annotations

import struct
from typing import IO, Literal

Channel = Literal[1, 2]
"""1: what the agent says, 2: what it or the bridge complains of, as the numbers of stdout and stderr."""
MAX_CHUNK_BYTES = 2**20
_HEAD = struct.Struct("!BI")


def frame_of(channel: Channel, data: bytes) -> bytes:
    """A frame with `data`."""
    return _HEAD.pack(channel, len(data)) + data


def read_frame(source: IO[bytes]) -> tuple[int, bytes] | None:
    """The next channel and its data; None at the end, also in the middle of a frame."""
    head = source.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    channel, length = _HEAD.unpack(head)
    data = source.read(length)
    return (channel, data) if len(data) == length else None
