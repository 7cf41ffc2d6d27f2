"""uvicorn, set up for the daemon: it leaves signals alone, and on unix sockets it knows the peer."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cotenant.daemon.auth.unix_socket import PeerCredentialsMixin

SHUTDOWN_GRACE_S = 3
"""Time that open requests get to finish when the daemon ends."""


class PeerH11(PeerCredentialsMixin, H11Protocol):
    """HTTP parsed in Python by h11."""


class UvicornServer(uvicorn.Server):
    """uvicorn without its signal handlers: uvicorn 0.30 installs them in `capture_signals`, and has no option."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def new_server(application: Any) -> UvicornServer:
    """A server of `application` for unix sockets, which `serve` gets."""
    return UvicornServer(server_config(application, peer_protocol()))


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
