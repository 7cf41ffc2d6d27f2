"""What a user's process writes costs bounded memory, and time in proportion to its length."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cotenant.daemon.estimation import exchange
from cotenant.daemon.estimation.exchange import Exchange, WorkerOutputError


class Searches(bytearray):
    """Counts the bytes that are searched for a line end."""

    searched = 0

    def partition(self, separator):
        self.searched += len(self)
        return super().partition(separator)

    def __contains__(self, item):
        self.searched += len(self)
        return super().__contains__(item)

    def find(self, *args):
        self.searched += len(self)
        return super().find(*args)


@pytest.fixture
def an_exchange():
    """An exchange with a process that does nothing."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", "input()"], **pipes) as process:
        yield Exchange(process, b"{}")


def test_an_answer_in_single_bytes_is_searched_once(an_exchange):
    an_exchange._answer = Searches()
    for _ in range(1000):
        assert an_exchange._add_answer(b" ")
    assert not an_exchange._add_answer(b"\n")
    assert an_exchange._answer.searched == 1001
    assert an_exchange._line == b" " * 1000


def test_of_a_long_stderr_the_end_is_in_memory(an_exchange, monkeypatch):
    monkeypatch.setattr(exchange, "LOG_TAIL_BYTES", 100)
    monkeypatch.setattr(exchange, "MAX_LOG_BYTES", 10_000)
    for number in range(100):
        assert an_exchange._add_log(b"%100d" % number)
        assert len(an_exchange._log) <= 200
    assert an_exchange.log == b"%100d" % 99
    with pytest.raises(WorkerOutputError, match="more than 10000 bytes to stderr"):
        an_exchange._add_log(b"x")


def test_an_empty_line_is_an_answer(an_exchange):
    """Its process goes on: whoever took it for the end would wait for that."""
    an_exchange._add_answer(b"\n")
    assert an_exchange._line == b""
