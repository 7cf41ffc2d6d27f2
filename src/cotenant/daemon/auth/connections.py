"""Open connections of the unix socket: how many each user has, and which of them send nothing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from cotenant.daemon.auth.unix_socket import Peer, peer_of

HEAD_TIMEOUT_S = 10.0
"""Time for the head of a request, from the start of the connection or the end of the previous response."""
BODY_PAUSE_S = 30.0
"""Longest pause within the body of a request."""
REQUEST_TIMEOUT_S = 300.0
"""Time for a whole request."""
SWEEP_S = 1.0


class ConnectionTable:
    """The connections of one server. `max_per_user` of each user at once; root has no limit."""

    def __init__(self, max_per_user: int, *, head_timeout_s: float = HEAD_TIMEOUT_S) -> None:
        self._max_per_user = max_per_user
        self._head_timeout_s = head_timeout_s
        self._open: dict[int, set[Any]] = {}  # protocols by uid
        self._timer: asyncio.TimerHandle | None = None

    def add(self, protocol: Any, uid: int) -> str | None:
        """Add a connection of `uid`; returns why it is refused, or None."""
        mine = self._open.setdefault(uid, set())
        if uid != 0 and len(mine) >= self._max_per_user:
            return f"you have {len(mine)} connections open, the limit is {self._max_per_user}"
        mine.add(protocol)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        return None

    def remove(self, protocol: Any, uid: int) -> None:
        """The connection is closed."""
        mine = self._open.get(uid)
        if mine is not None:
            mine.discard(protocol)
            if not mine:
                del self._open[uid]

    def _sweep(self) -> None:
        """Close the connections whose request does not get complete in time."""
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for protocols in self._open.values():
            for protocol in protocols:
                if self._is_overdue(protocol, now_s):
                    protocol.transport.abort()
        self._timer = loop.call_later(SWEEP_S, self._sweep) if self._open else None

    def _is_overdue(self, protocol: Any, now_s: float) -> bool:
        due_s = deadline_s(protocol, self._head_timeout_s)
        return due_s is not None and now_s > due_s


def deadline_s(protocol: Any, head_timeout_s: float) -> float | None:
    """When a connection is to be closed unless more arrives; None while the daemon is at work on its request.

    `protocol` is one of uvicorn's with `since_s`, the time of the connection or of the end of the previous response,
    and `last_data_s`, when it received something. Times are those of the event loop.
    """
    cycle = protocol.cycle
    if cycle is None or cycle.response_complete:
        return float(protocol.since_s + head_timeout_s)
    if not cycle.more_body:
        return None
    return float(min(protocol.last_data_s + BODY_PAUSE_S, protocol.since_s + REQUEST_TIMEOUT_S))


class PeerConnectionMixin:
    """HTTP protocol mixin: puts the peer into `request.state.peer`, and registers the connection.

    `config.connections` is the `ConnectionTable`; without one, connections are not limited.
    """

    app_state: dict[str, Any]
    config: Any
    transport: Any
    peer: Peer
    since_s = 0.0
    """Time of the connection, or of the end of the previous response."""
    last_data_s = 0.0
    _is_refused = False

    def connection_made(self, transport: Any) -> None:
        self.peer = peer_of(transport.get_extra_info("socket"))
        table: ConnectionTable | None = getattr(self.config, "connections", None)
        refusal = None if table is None else table.add(self, self.peer.uid)
        if refusal is not None:
            self._is_refused, self.transport = True, transport
            transport.write(_unavailable(refusal))
            transport.close()
            return
        self.since_s = self.last_data_s = asyncio.get_running_loop().time()
        self.app_state = {**self.app_state, "peer": self.peer}
        super().connection_made(transport)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self.last_data_s = self.loop.time()  # type: ignore[attr-defined]
        super().data_received(data)  # type: ignore[misc]

    def on_response_complete(self) -> None:
        self.since_s = self.loop.time()  # type: ignore[attr-defined]
        super().on_response_complete()  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_refused:
            return
        table: ConnectionTable | None = getattr(self.config, "connections", None)
        if table is not None:
            table.remove(self, self.peer.uid)
        super().connection_lost(exc)  # type: ignore[misc]

    def eof_received(self) -> None:
        if not self._is_refused:
            super().eof_received()  # type: ignore[misc]


def _unavailable(message: str) -> bytes:
    """A response with an error, as `api.requests.error_response` writes it."""
    error = {
        "kind": "CotenantError",
        "message": message,
        "hint": "close some: each `wait`, `logs -f`, `attach` and `top` holds one",
        "exit_code": 1,
    }
    body = json.dumps({"schema": 1, "error": error}).encode()
    head = f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\nconnection: close\r\n\r\n".encode() + body
