"""HTTP on unix sockets, by either parser: the peer is identified, and the size of requests is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest
from starlette.responses import JSONResponse

from cotenant.daemon.auth import connections
from cotenant.daemon.auth.connections import ConnectionTable
from cotenant.daemon.auth.http import PeerH11, UvicornServer, peer_protocol, server_config
from cotenant.daemon.auth.unix_socket import ListeningSocket, Peer


def protocols():
    found = peer_protocol()
    why = "httptools is not installed"
    return [PeerH11, pytest.param(found, marks=pytest.mark.skipif(found is PeerH11, reason=why))]


async def who(scope, receive, send):
    """Says who asked and how long the body was."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    peer = scope["state"]["peer"]
    answer = JSONResponse({"pid": peer.pid, "uid": peer.uid, "size": size})
    await answer(scope, receive, send)


def answer_to(protocol, tmp_path, *pieces, most_pieces=1000):
    """All that is answered to `pieces`, the last of which is sent again and again until the connection is closed."""

    async def run():
        listening = ListeningSocket(tmp_path / "sock")
        server = UvicornServer(server_config(who, protocol))
        serving = asyncio.create_task(server.serve(sockets=[listening.socket]))
        reader, writer = await asyncio.open_unix_connection(str(listening.path))
        answer = asyncio.create_task(read(reader))
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            for _ in range(most_pieces):
                if answer.done():
                    break
                writer.write(pieces[-1])
                await writer.drain()
        try:
            return await asyncio.wait_for(answer, 10)
        finally:
            writer.close()
            server.should_exit = True
            await serving
            listening.close()

    return asyncio.run(run())


async def read(reader):
    """Up to the end of the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := await reader.read(2**16):
            found += piece
    return found.decode()


@pytest.mark.parametrize("protocol", protocols())
def test_every_request_of_a_connection_has_the_peers_credentials(protocol, tmp_path):
    one = b"POST /x HTTP/1.1\r\nhost: d\r\nx-long: %b\r\ncontent-length: 3\r\n\r\nabc" % (b"x" * 30_000)
    last = one.replace(b"host", b"connection: close\r\nhost")
    answers = answer_to(protocol, tmp_path, one, one, one, last, b"")
    assert answers.count("HTTP/1.1 200 OK") == 4
    assert answers.count(f'{{"pid":{os.getpid()},"uid":{os.getuid()},"size":3}}') == 4


@pytest.mark.parametrize("protocol", protocols())
@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(b"POST /x", id="an address"),
        pytest.param(b"POST /x HTTP/1.1\r\nx-long: ", id="a header"),
    ],
)
def test_an_endless_request_line_ends_the_connection(protocol, tmp_path, begun):
    assert "200 OK" not in answer_to(protocol, tmp_path, begun, b"x" * 2**16)


@pytest.mark.parametrize("protocol", protocols())
def test_endless_headers_end_the_connection(protocol, tmp_path):
    assert "200 OK" not in answer_to(protocol, tmp_path, b"POST /x HTTP/1.1\r\n", b"a: b\r\n" * 1000)


@pytest.mark.parametrize("protocol", protocols())
def test_endless_trailers_end_the_connection(protocol, tmp_path, monkeypatch):
    if protocol is not PeerH11:
        from cotenant.daemon.auth import http_httptools

        monkeypatch.setattr(http_httptools, "MAX_MESSAGE_BYTES", 2**20)
    head = b"POST /x HTTP/1.1\r\nhost: d\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n"
    assert "200 OK" not in answer_to(protocol, tmp_path, head, b"a: b\r\n" * 1000)


@pytest.mark.parametrize("protocol", protocols())
@pytest.mark.parametrize("nonsense", [b"\x16\x03\x01\x02\x00", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\n: x\r\n"])
def test_a_request_that_is_not_http_is_refused(protocol, tmp_path, nonsense):
    assert answer_to(protocol, tmp_path, nonsense + b"\r\n\r\n", b"").startswith("HTTP/1.1 400")


# Connections.


def served(tmp_path, protocol, use, **limits):
    """What `use(path)`, a coroutine, returns while a server with these limits runs."""

    async def run():
        listening = ListeningSocket(tmp_path / "sock")
        config = server_config(who, protocol)
        config.connections = ConnectionTable(**{"max_per_user": 100, **limits})
        server = UvicornServer(config)
        serving = asyncio.create_task(server.serve(sockets=[listening.socket]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            return await asyncio.wait_for(use(listening, server), 30)
        finally:
            server.should_exit = True
            await serving
            listening.close()

    return asyncio.run(run())


REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("protocol", protocols())
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost:"], ids=["nothing", "half a head"])
def test_a_connection_that_sends_no_complete_head_is_closed(tmp_path, protocol, sent):
    async def idle(listening, _):
        reader, writer = await asyncio.open_unix_connection(str(listening.path))
        writer.write(sent)
        answer = await read(reader)
        writer.close()
        return answer

    assert served(tmp_path, protocol, idle, head_timeout_s=0.0) == ""


@pytest.mark.parametrize("protocol", protocols())
def test_a_user_has_a_limited_number_of_connections_and_a_closed_one_counts_no_more(tmp_path, protocol, monkeypatch):
    monkeypatch.setattr(connections, "peer_of", lambda _: Peer(pid=1, uid=1000, gid=1000))

    async def crowd(listening, _):
        idle = [await asyncio.open_unix_connection(str(listening.path)) for _ in range(3)]
        answers = []
        for close_one in (False, True):
            if close_one:
                idle.pop()[1].close()
                await asyncio.sleep(0.1)
            reader, writer = await asyncio.open_unix_connection(str(listening.path))
            with contextlib.suppress(ConnectionError):
                writer.write(REQUEST)
            answers.append(await reader.readuntil(b"}"))
            writer.close()
        for _, writer in idle:
            writer.close()
        return answers

    refused, answered = served(tmp_path, protocol, crowd, max_per_user=3)
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"you have 3 connections open, the limit is 3" in refused
    assert answered.startswith(b"HTTP/1.1 200 ")


def test_root_has_no_limit_of_connections(monkeypatch):
    async def add():
        table = ConnectionTable(1)
        found = [table.add(object(), 0) for _ in range(5)]
        table._timer.cancel()
        return found

    assert asyncio.run(add()) == [None] * 5


def test_a_removed_socket_is_made_again_and_open_connections_stay(tmp_path):
    async def use(listening, server):
        reader, writer = await asyncio.open_unix_connection(str(listening.path))
        assert not listening.is_lost
        listening.path.unlink()
        listening.path.with_name("sock.lock").unlink()
        assert listening.is_lost
        await server.add_socket(listening.rebind())
        assert not listening.is_lost
        found = []
        for connection in ((reader, writer), await asyncio.open_unix_connection(str(listening.path))):
            connection[1].write(REQUEST)
            found.append(await connection[0].readuntil(b"}"))
            connection[1].close()
        return found

    first, second = served(tmp_path, peer_protocol(), use)
    assert b" 200 " in first
    assert b" 200 " in second
