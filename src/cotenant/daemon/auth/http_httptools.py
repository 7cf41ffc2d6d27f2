"""HTTP on unix sockets, parsed by httptools, the parser of Node.js: a fifth of the CPU time of h11.

Needs `httptools`.

A module of its own: httptools is optional.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cotenant.daemon.auth.connections import PeerConnectionMixin

MAX_HEAD_BYTES = 64 * 1024
MAX_MESSAGE_BYTES = 256 * 2**20
"""Of a request in all, into however many pieces its body is cut; how long that may be, `calls.requests` says."""


class PeerHttpTools(PeerConnectionMixin, HttpToolsProtocol):
    """Closes a connection whose head or trailers exceed the limits.

    uvicorn has none here: its `HttpToolsProtocol.data_received` (0.54, uvicorn/protocols/http/httptools_impl.py) feeds
    whatever comes to the parser, which holds a head until it is complete.
    """

    _is_in_head = False
    _message_bytes = 0

    def data_received(self, data: bytes) -> None:
        self._message_bytes += len(data)
        super().data_received(data)
        if self._message_bytes > (MAX_HEAD_BYTES if self._is_in_head else MAX_MESSAGE_BYTES):
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._is_in_head, self._message_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()
