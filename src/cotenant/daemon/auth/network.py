"""The API on the network: off unless configured, for holders of tokens only.

uvicorn has no timeout for a request head, no limit on connections before their first request, and no option for the
TLS handshake, so connections are accepted here and one method of its h11 protocol is extended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import pwd
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from cotenant.core.errors import BackendError, NotPermitted, UsageError
from cotenant.daemon.api.requests import error_response
from cotenant.daemon.auth.connections import HEAD_TIMEOUT_S, deadline_s
from cotenant.daemon.auth.http import SHUTDOWN_GRACE_S, server_config
from cotenant.daemon.auth.permissions import AccessPolicy
from cotenant.daemon.auth.tokens import FAILURE_WINDOW_S, Token, TokenStore, TokenThrottle, token_id_of
from cotenant.daemon.auth.unix_socket import Peer
from cotenant.daemon.config.schema import ListenerSection

logger = logging.getLogger(__name__)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

HANDSHAKE_TIMEOUT_S = 10.0
ACCEPT_PAUSE_S = 1.0
MAX_HEAD_BYTES = 32 * 1024


class TcpListener:
    """The TCP socket of a section of the configuration, `[tcp]` or `[web]`.

    Raises:
        UsageError: the address is invalid, or other machines reach it without TLS.
        BackendError: the address is taken, or the certificate is invalid.
    """

    def __init__(self, settings: ListenerSection, section: str = "tcp") -> None:
        host, port = check_listener(settings, section)
        self.tls = _context(settings)
        self._most = settings.connections
        self._serving: set[asyncio.Task[None]] = set()
        if self.tls is None and not host.is_loopback:
            logger.warning("tokens and jobs cross the network unencrypted", extra={"fields": {"at": settings.listen}})
        family = socket.AF_INET6 if host.version == 6 else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.socket.bind((str(host), port))
            self.socket.listen(128)
        except OSError as error:
            self.socket.close()
            raise BackendError(f"cannot listen on `{settings.listen}`: {error.strerror or error}") from error
        self.socket.setblocking(False)  # noqa: FBT003 (the standard library's signature)

    @property
    def url(self) -> str:
        """Its URL for clients on this machine."""
        host, port = self.socket.getsockname()[:2]
        return f"{'http' if self.tls is None else 'https'}://{f'[{host}]' if ':' in host else host}:{port}"

    async def serve(self, application: ASGIApp, closing: asyncio.Event) -> None:
        """Serve `application` until `closing`; open requests then get `SHUTDOWN_GRACE_S` to finish."""
        config = server_config(application, H11Protocol)
        config.h11_max_incomplete_event_size = MAX_HEAD_BYTES
        config.load()
        state = ServerState()
        accepting = asyncio.create_task(self._accept(lambda: _Protocol(config, state, {})))
        await closing.wait()
        accepting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await accepting
        self.socket.close()
        for connection in list(state.connections):
            connection.shutdown()
        await asyncio.wait(self._serving, timeout=SHUTDOWN_GRACE_S) if self._serving else None
        for task in (*self._serving, *state.tasks):
            task.cancel()

    async def _accept(self, protocol: Callable[[], _Protocol]) -> None:
        """Accept connections. They count towards the limit before they send anything."""
        here = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await here.sock_accept(self.socket)
            except OSError as error:  # e.g. too many open files
                logger.warning("cannot accept a connection", extra={"fields": {"why": str(error)}})
                await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if len(self._serving) >= self._most:
                connection.close()
                continue
            task = asyncio.create_task(self._serve_one(connection, protocol))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _serve_one(self, connection: socket.socket, protocol: Callable[[], _Protocol]) -> None:
        handshake_s = None if self.tls is None else HANDSHAKE_TIMEOUT_S
        try:
            _, served = await asyncio.get_running_loop().connect_accepted_socket(
                protocol, connection, ssl=self.tls, ssl_handshake_timeout=handshake_s
            )
        except OSError:  # no TLS, too old a version, or a timeout
            connection.close()
            return
        await served.lost.wait()


def check_listener(settings: ListenerSection, name: str) -> tuple[Address, int]:
    """The address and port to listen on, by the section `name` of the configuration.

    Raises:
        UsageError: the address is invalid, or other machines reach it without TLS.
    """
    host, port = address_of(settings.listen or "")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise UsageError(f"TLS needs both {name}.tls_cert and {name}.tls_key")
    if settings.tls_cert is None and not host.is_loopback and not settings.plaintext:
        raise UsageError(
            f"`{name}.listen` is {settings.listen}, which other machines reach, without TLS",
            hint=f"set {name}.tls_cert and {name}.tls_key; or listen on 127.0.0.1 and use ssh -L; or, in a network"
            f" where everybody may read the tokens, {name}.plaintext = true",
        )
    return host, port


def address_of(text: str) -> tuple[Address, int]:
    """Address and port of `127.0.0.1:7411`, `[::1]:7411`, `localhost:7411`; port 0 is any that is free.

    Raises:
        UsageError: it is no address. Host names are refused: what they resolve to may change.
    """
    host, colon, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    with contextlib.suppress(ValueError):
        if colon and port.isascii() and port.isdigit() and int(port) <= 65535:
            return ipaddress.ip_address("127.0.0.1" if bare == "localhost" else bare), int(port)
    raise UsageError(f"`{text}` is no address to listen on", hint="write e.g. 127.0.0.1:7411 or [::1]:7411")


def _context(settings: ListenerSection) -> ssl.SSLContext | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    for path in (settings.tls_cert, settings.tls_key):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise BackendError(f"cannot read `{path}`: {error.strerror}") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise BackendError(
            f"`{settings.tls_cert}` and `{settings.tls_key}` are no certificate and its key, in PEM and without a"
            f" password ({error})"
        ) from error
    return context


class TokenAuthMiddleware:
    """ASGI middleware: authenticates by bearer token, and sets the token's user as the peer of the request.

    On the unix socket the kernel names the peer, and a token is optional: a request with one counts as the token's
    user, with no right of the process that sent it. So the web page serves many users through one process.
    """

    def __init__(
        self, application: ASGIApp, tokens: TokenStore, access: AccessPolicy, bad: TokenThrottle | None = None
    ) -> None:
        self._application = application
        self._tokens = tokens
        self._access = access
        self._bad = bad or TokenThrottle()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        shown = Headers(scope=scope).get("authorization", "")
        process: Peer | None = scope.get("state", {}).get("peer")
        if process is not None and not shown:
            await self._application(scope, receive, send)
            return
        client = scope["client"][0] if scope.get("client") else ""
        found = self._peer(shown, _network_of(client) if process is None else f"uid {process.uid}")
        if isinstance(found, Response):
            await found(scope, receive, send)
            return
        await self._application({**scope, "state": {**scope.get("state", {}), "peer": found}}, receive, send)

    def _peer(self, shown: str, address: str) -> Peer | Response:
        kind, _, text = shown.partition(" ")
        text = text.strip()
        token = self._tokens.find(text) if kind.lower() == "bearer" else None
        peer = None if token is None else self._holder(token)
        if peer is not None:
            return peer
        if self._bad.refuses(address):
            error = NotPermitted("too many bad tokens from your address", hint=f"wait {FAILURE_WINDOW_S:g} s")
            return _refusal(error, 429, {"retry-after": f"{FAILURE_WINDOW_S:g}"})
        if shown:
            self._bad.add(address)
            logger.warning("bad token", extra={"fields": {"from": address, "token": token_id_of(text)}})
        error = NotPermitted(
            "this token is not good" if shown else "no token was shown",
            hint="make one on the machine itself, with `cotenant token create`; show it in $COTENANT_TOKEN",
        )
        return _refusal(error, 401, {"www-authenticate": "Bearer"})

    def _holder(self, token: Token) -> Peer | None:
        """Whom the token is of; None if the machine, or this daemon, knows them no more."""
        try:
            gid = pwd.getpwuid(token.uid).pw_gid
        except KeyError:
            if token.uid != os.getuid():
                return None
            gid = os.getgid()
        if token.uid == 0 and self._access.many:
            return None
        return Peer(pid=0, uid=token.uid, gid=gid, token=token.id, admin=token.admin)


def _refusal(error: NotPermitted, status: int, headers: dict[str, str]) -> Response:
    """A response with `error` that closes the connection, without reading the body."""
    answer = error_response(error)
    answer.status_code = status
    answer.headers.update({**headers, "connection": "close"})
    return answer


def _network_of(address: str) -> str:
    """The address, or the /64 network for IPv6: one host can use any address in its /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((int(found) >> 64 << 64, 64)))
    return address


class _Protocol(H11Protocol):
    """h11 protocol that closes a connection whose request does not get complete in time, as on the unix socket."""

    def __init__(self, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any]) -> None:
        super().__init__(config, state, app_state)
        self._timer: asyncio.TimerHandle | None = None
        self.since_s = self.last_data_s = 0.0
        self.lost = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self.since_s = self.last_data_s = self.loop.time()
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)
        self.lost.set()

    def data_received(self, data: bytes) -> None:
        self.last_data_s = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self.since_s = self.loop.time()
        super().on_response_complete()

    def _watch(self) -> None:
        """Close the connection if it is overdue, else look again when it may be."""
        now_s, due_s = self.loop.time(), deadline_s(self, HEAD_TIMEOUT_S)
        if self.transport.is_closing():
            return
        if due_s is not None and now_s >= due_s:
            self.transport.abort()
            return
        again_s = now_s + HEAD_TIMEOUT_S  # the end of a response may bring the deadline nearer
        self._timer = self.loop.call_at(again_s if due_s is None else min(due_s, again_s), self._watch)
