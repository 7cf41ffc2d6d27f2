"""HTTP over the daemon's unix socket, for clients.

`http.client` would take a quarter of the time of a short command: it imports the parsers of e-mail, and TLS. The
daemon's answers have a length or are chunked (RFC 9112, sections 6 and 7.1), and headers without line folding.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

MAX_LINE_BYTES = 64 * 1024


class BrokenResponseError(OSError):
    """What came is no complete response."""


class UnixConnection:
    """One connection, for one request. `timeout_s`: for each step; None waits for ever."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def request(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> None:
        """Connect, and send a request.

        Raises:
            OSError: the daemon cannot be reached, or does not read it.
        """
        if self._timeout_s is not None:
            # With a timeout of Python the socket does not block, and connect(2) fails at once with EAGAIN where the
            # daemon's queue of connections is full (Linux 6.1, net/unix/af_unix.c, `unix_stream_connect`): any
            # user can fill it while the daemon starts. With a timeout of the kernel it waits for a place.
            timeout = struct.pack("ll", int(self._timeout_s), int(self._timeout_s % 1 * 1e6))
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self.sock.connect(str(self._path))
        self.sock.settimeout(self._timeout_s)
        fields = {"host": "localhost", **headers}
        if body is not None or method != "GET":
            fields["content-length"] = str(len(body or b""))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
        self.sock.sendall("\r\n".join(lines).encode() + (body or b""))

    def getresponse(self) -> UnixResponse:
        """Read the head of the response.

        Raises:
            OSError: there is none.
        """
        return UnixResponse(self.sock.makefile("rb"))

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


class UnixResponse:
    """A response whose body is read in pieces; `status` is its code."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        words = self._line().split(None, 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdigit():
            raise BrokenResponseError("no HTTP response")
        self.status = int(words[1])
        headers = {}
        while line := self._line():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._left_bytes = 0 if self._is_chunked else _number(headers.get("content-length", "0"), 10)

    def read(self) -> bytes:
        """All of the rest of the body."""
        pieces = []
        while piece := self.read1(2**20):
            pieces.append(piece)
        return b"".join(pieces)

    def read1(self, max_bytes: int) -> bytes:
        """What has come of the body, at least one byte; empty at its end.

        Raises:
            OSError: it broke off, or nothing came in time.
        """
        if self._is_chunked and not self._left_bytes:
            self._left_bytes = _number(self._line().partition(";")[0], 16)
            if not self._left_bytes:
                self._is_chunked = False
        if not self._left_bytes:
            return b""
        piece: bytes = self._file.read1(min(max_bytes, self._left_bytes))  # type: ignore[attr-defined]
        if not piece:
            raise BrokenResponseError("the connection was closed")
        self._left_bytes -= len(piece)
        if self._is_chunked and not self._left_bytes:
            self._line()
        return piece

    def _line(self) -> str:
        line = self._file.readline(MAX_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise BrokenResponseError("the connection was closed" if not line else "it was closed within a line")
        return line.rstrip(b"\r\n").decode("latin-1")


def _number(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise BrokenResponseError(f"`{text}` is no length") from error
