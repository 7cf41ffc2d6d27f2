"""Asynchronous client of the daemon's HTTP API, on its unix socket or the network.

`cotenant.daemon.client` blocks a thread for each call, and would block one for each page that follows a log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
import time
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httptools

from cotenant.core.errors import CotenantError, DaemonUnreachable, NotPermitted
from cotenant.daemon.client import error_of
from cotenant.daemon.remote_address import RemoteAddress

TIMEOUT_S = 30.0
CHUNK_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 256 * 2**20


_CPU = re.compile(rb"cpu;dur=([0-9]{1,9}\.[0-9]{2})")


class TokenRefused(NotPermitted):
    """The daemon knows the token of a session no more."""


@dataclass(slots=True)
class _Response:
    """What httptools has parsed so far."""

    has_head: bool = False
    is_complete: bool = False
    spent_s: float | None = None
    pieces: list[bytes] = field(default_factory=list)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"server-timing" and (found := _CPU.fullmatch(value)):
            self.spent_s = float(found[1]) / 1000

    def on_headers_complete(self) -> None:
        self.has_head = True

    def on_body(self, body: bytes) -> None:
        self.pieces.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True

    def take(self) -> bytes:
        """The body that arrived since the last call."""
        body, self.pieces = b"".join(self.pieces), []
        return body


class DaemonClient:
    """Client of one daemon. Every call opens its own connection.

    Args:
        socket_file: the daemon's unix socket.
        remote: a daemon on the network instead.

    All methods raise `DaemonUnreachable` if no daemon answers, and the daemon's own error otherwise. `token`: on whose
    behalf; without one the daemon sees the user of this process. `spent_s`: CPU time that the daemon says it took for
    all answers so far, or the time they took where it does not say.
    """

    def __init__(self, socket_file: Path | None, remote: RemoteAddress | None = None) -> None:
        self._socket_file = socket_file
        self._remote = remote
        self.spent_s = 0.0

    async def get(self, path: str, token: str | None, **query: Any) -> dict[str, Any]:
        """The answer of a GET request; None is no parameter."""
        given = {name: value for name, value in query.items() if value is not None}
        return await self._call("GET", f"{path}?{urllib.parse.urlencode(given)}" if given else path, token, None)

    async def post(
        self, path: str, token: str | None, body: Mapping[str, Any], *, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        """The answer of a POST request."""
        return await self._call("POST", path, token, json.dumps(body).encode(), timeout_s)

    async def stream(self, path: str, token: str | None, **query: Any) -> AsyncIterator[bytes]:
        """The body of a GET request in pieces, as they arrive."""
        target = f"{path}?{urllib.parse.urlencode(query)}"
        async with self._connection() as (reader, writer):
            parser, response = await self._request(reader, writer, "GET", target, token, None)
            if parser.get_status_code() >= 400:
                while not response.is_complete:
                    await self._feed(reader, parser)
                raise _error_in(parser.get_status_code(), response.take())
            while True:
                if body := response.take():
                    yield body
                if response.is_complete:
                    return
                await self._feed(reader, parser)

    async def _call(
        self, method: str, target: str, token: str | None, body: bytes | None, timeout_s: float = TIMEOUT_S
    ) -> dict[str, Any]:
        try:
            status, answer = await asyncio.wait_for(self._exchange(method, target, token, body), timeout_s)
        except asyncio.TimeoutError:
            raise DaemonUnreachable(f"the daemon has not answered for {timeout_s:g} s") from None
        if status >= 400:
            raise _error_in(status, answer)
        try:
            found: dict[str, Any] = json.loads(answer)
        except ValueError as error:
            raise DaemonUnreachable(f"the daemon's answer is not JSON ({error})") from error
        return found

    async def _exchange(self, method: str, target: str, token: str | None, body: bytes | None) -> tuple[int, bytes]:
        began_s = time.monotonic()
        async with self._connection() as (reader, writer):
            parser, response = await self._request(reader, writer, method, target, token, body)
            self.spent_s += time.monotonic() - began_s if response.spent_s is None else response.spent_s
            size = 0
            pieces = []
            while True:
                pieces.append(response.take())
                size += len(pieces[-1])
                if size > MAX_ANSWER_BYTES:
                    raise DaemonUnreachable(f"the daemon's answer is longer than {MAX_ANSWER_BYTES} bytes")
                if response.is_complete:
                    return parser.get_status_code(), b"".join(pieces)
                await self._feed(reader, parser)

    async def _request(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        method: str,
        target: str,
        token: str | None,
        body: bytes | None,
    ) -> tuple[Any, _Response]:
        """Send a request; returns the parser of the response once its head has arrived."""
        headers = {"host": "localhost", "connection": "close", **({} if self._remote is None else self._remote.headers)}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        if body is not None:
            headers |= {"content-type": "application/json", "content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        response = _Response()
        parser = httptools.HttpResponseParser(response)
        try:
            writer.write(f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode() + (body or b""))
            await writer.drain()
        except OSError as error:
            raise DaemonUnreachable(f"the daemon closed the connection ({error})") from error
        while not response.has_head:
            await self._feed(reader, parser)
        return parser, response

    async def _feed(self, reader: asyncio.StreamReader, parser: Any) -> None:
        try:
            data = await reader.read(CHUNK_BYTES)
            if not data:
                raise DaemonUnreachable("the daemon's answer broke off")
            parser.feed_data(data)
        except (OSError, httptools.HttpParserError) as error:
            raise DaemonUnreachable(f"the connection to the daemon was lost ({error})") from error

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            reader, writer = await self._open()
        except (OSError, ssl.SSLError) as error:
            raise DaemonUnreachable("no daemon answers", hint="start one with: cotenant daemon") from error
        try:
            yield reader, writer
        finally:
            writer.close()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._remote is None:
            return await asyncio.open_unix_connection(str(self._socket_file))
        context = self._remote.tls_context()
        return await asyncio.open_connection(self._remote.host, self._remote.port, ssl=context)


def _error_in(status: int, body: bytes) -> CotenantError:
    """The error in a response, as the class that the daemon raised."""
    try:
        error = error_of(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return CotenantError(f"the daemon answered with status {status}")
    return TokenRefused(error.message, hint=error.hint) if status == 401 else error
