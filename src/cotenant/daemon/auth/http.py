"""uvicorn, set up for the daemon: it leaves signals alone, and on unix sockets it knows the peer."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cotenant.daemon.auth.connections import ConnectionTable, PeerConnectionMixin

SHUTDOWN_GRACE_S = 3
"""Time that open requests get to finish when the daemon ends."""


class PeerH11(PeerConnectionMixin, H11Protocol):
    """HTTP parsed in Python by h11."""


class UvicornServer(uvicorn.Server):
    """uvicorn without its signal handlers: uvicorn 0.30 installs them in `capture_signals`, and has no option."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def add_socket(self, listening: socket.socket) -> None:
        """Serve connections to one more socket. Call it after `startup`, which `serve` does."""

        def protocol() -> Any:
            return self.config.http_protocol_class(  # type: ignore[call-arg]
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        self.servers.append(await asyncio.get_running_loop().create_server(protocol, sock=listening))


def new_server(application: Any, *, max_per_user: int | None = None) -> UvicornServer:
    """A server of `application` for unix sockets, which `serve` gets; `max_per_user`: connections of one user."""
    config: Any = server_config(application, peer_protocol())
    if max_per_user is not None:
        config.connections = ConnectionTable(max_per_user)
    return UvicornServer(config)


def peer_protocol() -> type[Any]:
    """The HTTP protocol class for unix sockets: on `httptools`, or on h11 if that is not installed."""
    if importlib.util.find_spec("httptools") is None:
        return PeerH11
    from cotenant.daemon.auth.http_httptools import PeerHttpTools

    return PeerHttpTools


def server_config(application: Any, protocol: type[Any]) -> uvicorn.Config:
    """The uvicorn configuration for `application`, with the HTTP protocol class `protocol`."""
    return uvicorn.Config(
        application,
        http=protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # a client could forge them
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
