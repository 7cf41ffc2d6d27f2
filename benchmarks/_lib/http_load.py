"""HTTP load generator: many clients in one process on raw sockets, cheap enough that the daemon dominates.

Each client repeats the same request as soon as it has the response, over one keep-alive connection or over a new
connection per request, as the command line does.
"""

from __future__ import annotations

import selectors
import socket
from dataclasses import dataclass
from pathlib import Path

END_OF_HEAD = b"\r\n\r\n"
LENGTH = b"content-length:"


@dataclass(slots=True)
class _Response:
    """The part of a response received so far; `total_bytes` is known once its head is complete."""

    text: bytes = b""
    total_bytes: int | None = None

    def feed(self, piece: bytes) -> bool:
        """Append `piece`; returns whether the response is complete."""
        if not piece:
            raise SystemExit(f"the daemon closed the connection after {self.text[:200]!r}")
        self.text += piece
        if self.total_bytes is None and END_OF_HEAD in self.text:
            head, _, _ = self.text.partition(END_OF_HEAD)
            if b" 201 " not in head.split(b"\r\n")[0]:
                raise SystemExit(f"the daemon refused: {self.text!r}")
            length = int(head.lower().partition(LENGTH)[2].split(b"\r\n")[0])
            self.total_bytes = len(head) + len(END_OF_HEAD) + length
        return self.total_bytes == len(self.text)


def generate_load(path: Path, body: bytes, *, times: int, clients: int, keep_alive: bool) -> None:
    """POST `body` to `/v1/jobs` `times` times from `clients` concurrent clients; every response must be 201."""
    head = f"POST /v1/jobs HTTP/1.1\r\nhost: d\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    selector = selectors.DefaultSelector()
    left, open_now = times, 0

    def send(connection: socket.socket | None) -> None:
        nonlocal left, open_now
        if connection is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(path))
            selector.register(connection, selectors.EVENT_READ, _Response())
            open_now += 1
        else:
            selector.modify(connection, selectors.EVENT_READ, _Response())
        connection.sendall(request)
        left -= 1

    def close(connection: socket.socket) -> None:
        nonlocal open_now
        selector.unregister(connection)
        connection.close()
        open_now -= 1

    for _ in range(min(clients, times)):
        send(None)
    while open_now:
        for key, _ in selector.select():
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            if not key.data.feed(connection.recv(1 << 20)):
                continue
            if left and keep_alive:
                send(connection)
                continue
            close(connection)
            if left:
                send(None)
    selector.close()
