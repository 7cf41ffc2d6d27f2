"""HTTP as the daemon speaks it: who is at the other end is known, and signals are left alone."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cotenant.daemon.auth.unix_socket import PeerCredentialsMixin

SHUTDOWN_GRACE_S = 3
"""Open requests get this long when the daemon ends."""


class PeerH11(PeerCredentialsMixin, H11Protocol):
    """Read in Python."""


class UvicornServer(uvicorn.Server):
    """uvicorn, with the signals left to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def new_server(application: Any) -> UvicornServer:
    """A server of `application` on unix sockets that are given to it later."""
    return UvicornServer(server_config(application, peer_protocol()))


def peer_protocol() -> type[Any]:
    """What reads HTTP on unix sockets: `httptools`, or Python where somebody left that out."""
    if importlib.util.find_spec("httptools") is None:
        return PeerH11
    from cotenant.daemon.auth.http_httptools import PeerHttpTools

    return PeerHttpTools


def server_config(application: Any, protocol: type[Any]) -> uvicorn.Config:
    """How `application` is served, by whatever `protocol` adds to HTTP."""
    return uvicorn.Config(
        application,
        http=protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # whoever asks may write them
        timeout_graceful_shutdown=SHUTDOWN_GRACE_S,
    )
