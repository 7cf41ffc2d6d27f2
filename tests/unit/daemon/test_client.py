"""The client where the daemon's queue of connections is full: it waits for a place."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest

from cotenant.core.errors import DaemonUnreachable
from cotenant.daemon.client import Client


@pytest.fixture
def full(tmp_path):
    """(Path, listening socket) with as many connections waiting as it may have."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket(socket.AF_UNIX))
        path = tmp_path / "sock"
        listening.bind(str(path))
        listening.listen(1)
        with contextlib.suppress(BlockingIOError):
            while True:
                waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
                waiting.setblocking(False)
                waiting.connect(str(path))
                waiting.shutdown(socket.SHUT_WR)
        yield path, listening


def test_a_full_queue_is_waited_for_until_the_timeout(full):
    path, _ = full
    with pytest.raises(DaemonUnreachable, match="does not answer"):
        Client(path, timeout_s=0.05).status()


def test_a_place_in_the_queue_is_enough(full):
    path, listening = full
    answers = []
    caller = threading.Thread(target=lambda: answers.append(Client(path, timeout_s=60).status()))
    caller.start()
    while not answers:
        connection, _ = listening.accept()
        with connection:
            if connection.recv(4096):  # those of the fixture send nothing
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n" + b'{"here": 1}')
                caller.join()
    assert answers == [{"here": 1}]
