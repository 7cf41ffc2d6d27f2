"""Responses that a client reads from a unix socket: of known length, chunked, and broken off."""

from __future__ import annotations

import io

import pytest

from cotenant.daemon.unix_http import BrokenResponseError, UnixResponse

HEAD = b"HTTP/1.1 200 OK\r\nserver: x\r\n"


def response(data):
    return UnixResponse(io.BufferedReader(io.BytesIO(data), buffer_size=4))


@pytest.mark.parametrize(
    ("rest", "body"),
    [
        pytest.param(b"Content-Length: 5\r\n\r\nhello", b"hello", id="of known length"),
        pytest.param(b"content-length: 0\r\n\r\n", b"", id="empty"),
        pytest.param(b"\r\n", b"", id="no body"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n4\r\nhell\r\n1;x=y\r\no\r\n0\r\n\r\n", b"hello", id="chunked"),
        pytest.param(b"transfer-encoding: chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n", b"0123456789", id="hex"),
    ],
)
def test_a_body_is_read_to_its_end(rest, body):
    found = response(HEAD + rest)
    assert found.status == 200
    assert found.read() == body
    assert found.read1(10) == b""


def test_pieces_of_a_chunk_arrive_one_by_one():
    found = response(HEAD + b"transfer-encoding: chunked\r\n\r\n6\r\nabcdef\r\n0\r\n\r\n")
    pieces = [found.read1(2) for _ in range(4)]
    assert b"".join(pieces) == b"abcdef"
    assert max(map(len, pieces)) <= 2


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 O", id="within the first line"),
        pytest.param(HEAD, id="within the head"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", id="another protocol"),
        pytest.param(HEAD + b"content-length: 5\r\n\r\nhell", id="within the body"),
        pytest.param(HEAD + b"content-length: five\r\n\r\n", id="a length that is none"),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nhell", id="within a chunk"),
        pytest.param(HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\nh\r\n", id="before the last chunk"),
    ],
)
def test_a_broken_response_is_an_error(data):
    with pytest.raises(BrokenResponseError):
        response(data).read()
