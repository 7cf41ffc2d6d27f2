"""The daemon's TCP side, over real sockets: who gets in, and what slow, many or bad clients can do."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import socket
import ssl
import subprocess
from types import SimpleNamespace

import pytest
from starlette.responses import JSONResponse

from cotenant.core.errors import BackendError, UsageError
from cotenant.daemon.auth import connections, network
from cotenant.daemon.auth.network import TcpListener, TokenAuthMiddleware, address_of
from cotenant.daemon.auth.permissions import AccessPolicy
from cotenant.daemon.auth.tokens import MAX_FAILURES, TokenStore, TokenThrottle
from cotenant.daemon.config.schema import TcpSection


async def who(scope, receive, send):
    """Says whom the gate took the caller for, after reading the body."""
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    peer = scope["state"]["peer"]
    answer = JSONResponse({"uid": peer.uid, "token": peer.token, "admin": peer.admin, "size": size})
    await answer(scope, receive, send)


class Place:
    """A listener in this event loop, with a token of our own user."""

    def __init__(self, listener, tokens):
        self.listener = listener
        self.token, self.text = tokens.create(os.getuid(), "x")
        self.port = listener.socket.getsockname()[1]

    async def connect(self, context=None):
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname="localhost" if context else None
        )

    async def request(self, token, *, body=b"", extra="", context=None):
        """Status line, headers and body of one answer."""
        reader, writer = await self.connect(context)
        shown = "" if token is None else f"authorization: Bearer {token}\r\n"
        head = (
            f"POST /v1/x HTTP/1.1\r\nhost: d\r\n{shown}{extra}content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        with contextlib.suppress(ConnectionError):  # an answer may come before the body has gone
            writer.write(head.encode() + body)
            await writer.drain()
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
        writer.close()
        return answer.decode()


def at_place(test, tmp_path, *, bad=None, many=False, **settings):
    """Run the coroutine `test(place)` beside a listener."""

    async def run():
        closing = asyncio.Event()
        listener = TcpListener(TcpSection(**{"listen": "127.0.0.1:0", **settings}))
        tokens = TokenStore(tmp_path / "tokens.json")
        gate = TokenAuthMiddleware(who, tokens, AccessPolicy(own_uid=os.getuid(), many=many), bad)
        serving = asyncio.create_task(listener.serve(gate, closing))
        try:
            place = Place(listener, tokens)
            place.tokens = tokens
            await asyncio.wait_for(test(place), 60)
        finally:
            closing.set()
            await serving

    asyncio.run(run())


def test_a_valid_token_authenticates_its_user(tmp_path):
    async def test(place):
        answer = await place.request(place.text, body=b"x" * 300_000)
        assert answer.startswith("HTTP/1.1 200")
        assert f'{{"uid":{os.getuid()},"token":"{place.token.id}","admin":false,"size":300000}}' in answer

    at_place(test, tmp_path)


@pytest.mark.parametrize("extra", ["", "x-forwarded-for: 127.0.0.1\r\n", "authorization: Basic cm9vdDo=\r\n"])
def test_a_request_without_a_token_is_unauthorized(tmp_path, extra):
    async def test(place):
        answer = await place.request(None, extra=extra)
        assert answer.startswith("HTTP/1.1 401")
        assert "www-authenticate: Bearer" in answer
        assert "NotPermitted" in answer

    at_place(test, tmp_path)


def test_a_token_of_root_is_refused_where_jobs_run_as_their_users(tmp_path):
    async def test(place):
        _, text = place.tokens.create(0, "root")
        assert (await place.request(text)).startswith("HTTP/1.1 401")

    at_place(test, tmp_path, many=True)


def test_the_token_of_a_deleted_user_is_refused(tmp_path):
    async def test(place):
        _, text = place.tokens.create(2**31 - 7, "gone")
        assert (await place.request(text)).startswith("HTTP/1.1 401")

    at_place(test, tmp_path)


def test_a_revoked_token_is_refused(tmp_path):
    async def test(place):
        place.tokens.revoke(place.token.id)
        assert (await place.request(place.text)).startswith("HTTP/1.1 401")

    at_place(test, tmp_path)


def test_guessing_is_throttled_per_address(tmp_path):
    now_s = [0.0]

    async def test(place):
        wrong = place.text[:-4] + "0000"
        statuses = [(await place.request(wrong)).split()[1] for _ in range(MAX_FAILURES + 2)]
        assert statuses == ["401"] * MAX_FAILURES + ["429"] * 2
        unknown = await place.request("cot_00000000_" + "x" * 40)  # another id: it is the address that guesses
        assert (unknown.split()[1], "retry-after: 60" in unknown) == ("429", True)
        now_s[0] = 61.0
        assert (await place.request(wrong)).split()[1] == "401"

    at_place(test, tmp_path, bad=TokenThrottle(now=lambda: now_s[0]))


def test_guesses_at_a_token_do_not_lock_its_holder_out(tmp_path):
    async def test(place):
        wrong = place.text[:-4] + "0000"
        for _ in range(2 * MAX_FAILURES):
            await place.request(wrong)
        assert (await place.request(place.text)).startswith("HTTP/1.1 200")

    at_place(test, tmp_path)


def test_a_long_body_without_a_token_is_not_read(tmp_path):
    async def test(place):
        answer = await place.request("cot_00000000_" + "x" * 40, body=b"x" * 30_000_000)
        assert answer == "" or answer.startswith("HTTP/1.1 401")
        assert (await place.request(place.text)).startswith("HTTP/1.1 200")

    at_place(test, tmp_path)


def test_a_head_without_end_is_refused(tmp_path):
    async def test(place):
        answer = await place.request(place.text, extra=f"x: {'y' * 40 * network.MAX_HEAD_BYTES}\r\n")
        assert answer == "" or answer.startswith("HTTP/1.1 400")
        assert (await place.request(place.text)).startswith("HTTP/1.1 200")

    at_place(test, tmp_path)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nx: ", b"\x16\x03\x01\x00"])
def test_an_incomplete_request_times_out(tmp_path, monkeypatch, said):
    monkeypatch.setattr(network, "HEAD_TIMEOUT_S", 0.05)

    async def test(place):
        reader, writer = await place.connect()
        writer.write(said)
        with contextlib.suppress(ConnectionError):
            await reader.read()  # returns: the other side has closed
        writer.close()

    at_place(test, tmp_path)


def test_a_second_request_has_the_same_timeout_as_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(network, "HEAD_TIMEOUT_S", 0.05)

    async def test(place):
        reader, writer = await place.connect()
        head = f"GET / HTTP/1.1\r\nhost: d\r\nauthorization: Bearer {place.text}\r\n\r\n".encode()
        writer.write(head + head[:20])
        with contextlib.suppress(ConnectionError):
            answer = await reader.read()
            assert answer.count(b"HTTP/1.1 200") == 1
        writer.close()

    at_place(test, tmp_path)


@pytest.mark.parametrize("limit", ["BODY_PAUSE_S", "REQUEST_TIMEOUT_S"])
def test_a_body_that_does_not_come_in_time_is_given_up(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(network, "HEAD_TIMEOUT_S", 0.05)
    monkeypatch.setattr(connections, limit, 0.05)

    async def test(place):
        reader, writer = await place.connect()
        head = f"POST / HTTP/1.1\r\nhost: d\r\nauthorization: Bearer {place.text}\r\ncontent-length: 1000000\r\n\r\n"
        writer.write(head.encode())
        closed = asyncio.create_task(reader.read())
        with contextlib.suppress(ConnectionError):
            while not closed.done():
                if limit == "REQUEST_TIMEOUT_S":  # pieces without a pause
                    writer.write(b"x")
                    await writer.drain()
                await asyncio.sleep(0.001)
            assert await closed == b"", "it was not answered"
        writer.close()
        monkeypatch.undo()
        assert (await place.request(place.text)).startswith("HTTP/1.1 200")

    at_place(test, tmp_path)


@pytest.mark.parametrize(
    ("cycle", "due_s"),
    [
        pytest.param(None, 110.0, id="no request yet: the head"),
        pytest.param((True, False), 110.0, id="answered: the next head"),
        pytest.param((False, False), None, id="the daemon is at work"),
        pytest.param((False, True), 150.0, id="within the body: a pause of 30 s"),
    ],
)
def test_what_a_connection_waits_for_decides_its_deadline(cycle, due_s):
    said = None if cycle is None else SimpleNamespace(response_complete=cycle[0], more_body=cycle[1])
    protocol = SimpleNamespace(cycle=said, since_s=100.0, last_data_s=120.0)
    assert connections.deadline_s(protocol, 10.0) == due_s


def test_connections_above_the_limit_are_closed_until_others_end(tmp_path):
    async def test(place):
        held = [await place.connect() for _ in range(3)]
        with contextlib.suppress(ConnectionError):
            assert await place.request(place.text) == ""
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        while not (answer := await place.request(place.text)):
            await asyncio.sleep(0)
        assert answer.startswith("HTTP/1.1 200")

    at_place(test, tmp_path, connections=3)


@pytest.fixture
def certificate(tmp_path):
    """A certificate of `localhost` and its key, made by openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, to make a certificate")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(cert))
    subprocess.run(["openssl", *shlex.split(words), *names, *files], check=True, capture_output=True)
    return cert, key


def test_tls_serves_clients_that_trust_the_certificate(tmp_path, certificate):
    cert, key = certificate

    async def test(place):
        assert place.listener.url.startswith("https://127.0.0.1:")
        trusting = ssl.create_default_context(cafile=str(cert))
        assert (await place.request(place.text, context=trusting)).startswith("HTTP/1.1 200")
        with pytest.raises(ssl.SSLCertVerificationError):
            await place.request(place.text, context=ssl.create_default_context())
        assert "200" not in await place.request(place.text)  # in the clear nobody is answered

    at_place(test, tmp_path, tls_cert=str(cert), tls_key=str(key))


def test_a_missing_tls_handshake_times_out(tmp_path, certificate, monkeypatch):
    monkeypatch.setattr(network, "HANDSHAKE_TIMEOUT_S", 0.05)
    cert, key = certificate

    async def test(place):
        reader, writer = await place.connect()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    at_place(test, tmp_path, tls_cert=str(cert), tls_key=str(key))


def test_an_invalid_certificate_file_is_refused(tmp_path, certificate):
    cert, key = certificate
    for settings, error in (
        ({"tls_cert": str(cert)}, UsageError),
        ({"tls_cert": str(cert), "tls_key": str(cert)}, BackendError),
        ({"tls_cert": str(key), "tls_key": str(tmp_path / "none")}, BackendError),
    ):
        with pytest.raises(error):
            TcpListener(TcpSection(listen="127.0.0.1:0", **settings))


def test_plain_text_on_a_public_address_needs_an_option(caplog):
    with pytest.raises(UsageError, match="without TLS"):
        TcpListener(TcpSection(listen="0.0.0.0:0"))
    listener = TcpListener(TcpSection(listen="0.0.0.0:0", plaintext=True))
    listener.socket.close()
    assert "unencrypted" in caplog.text


def test_an_address_in_use_is_an_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BackendError, match=f"cannot listen on `{where}`"):
            TcpListener(TcpSection(listen=where))


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [("127.0.0.1:7411", "127.0.0.1", 7411), ("[::1]:1", "::1", 1), ("localhost:0", "127.0.0.1", 0)],
)
def test_an_address_is_parsed(text, address, port):
    assert (str(address_of(text)[0]), address_of(text)[1]) == (address, port)


@pytest.mark.parametrize("text", ["7411", "gpu1:7411", "127.0.0.1", "127.0.0.1:", "127.0.0.1:70000", "", "[::1]"])
def test_an_invalid_address_is_refused(text):
    with pytest.raises(UsageError, match="no address to listen on"):
        address_of(text)


@pytest.mark.parametrize(
    ("address", "network_of"),
    [
        ("1.2.3.4", "1.2.3.4"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::ffff:1.2.3.4", "1.2.3.4"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_ipv6_addresses_of_a_network_are_throttled_together(address, network_of):
    assert network._network_of(address) == network_of
