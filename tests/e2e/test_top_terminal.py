"""`cotenant top` on a terminal, against a daemon: keys are pressed, and the screen is read."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios

import pytest

TIMEOUT_S = 60


class Terminal:
    """A pseudo-terminal of 120 x 30 cells with a program on it."""

    def __init__(self, server, *words):
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        env = {**server.env, "TERM": "xterm-256color", "NO_COLOR": "1"}
        self.process = subprocess.Popen([*server.command, *words], env=env, stdin=other, stdout=other, stderr=other)
        os.close(other)

    def read_until(self, pattern):
        """What is written to the terminal until `pattern`."""
        written = ""
        while not re.search(pattern, written, re.DOTALL):
            ready, _, _ = select.select([self._main], [], [], TIMEOUT_S)
            assert ready, written
            written += os.read(self._main, 65536).decode(errors="replace")
        return written

    def press(self, keys):
        os.write(self._main, keys.encode())

    def hang_up(self):
        """Close the terminal while the program runs on it."""
        os.close(self._main)
        self._main = -1

    def close(self):
        self.process.kill()
        self.process.wait()
        if self._main >= 0:
            os.close(self._main)


@pytest.fixture
def terminal(server):
    pytest.importorskip("textual", reason="the extra `top` is not installed")
    opened = []

    def start(*words):
        opened.append(Terminal(server, *words))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_job_is_watched_and_cancelled_on_the_screen(server, terminal):
    job = server.submit("echo first line; sleep 1000", name="long")
    server.started(job)
    screen = terminal("top", "--interval", "0.2")
    screen.read_until(r"long.*runs on GPU 0")
    screen.press("l")
    screen.read_until(r"first line")
    screen.press("\x1b")
    screen.read_until(r"runs on GPU 0")
    screen.press("?")
    screen.read_until(r"sort by the next of")
    screen.press("q")  # closes the keys, not the program
    screen.press("c")
    screen.read_until(r"Cancel job 1, long\? \(y/n\)")
    screen.press("y")
    assert server.wait(job)["state"] == "CANCELLED"
    screen.press("q")
    assert screen.process.wait(TIMEOUT_S) == 0


def test_top_ends_with_its_terminal(server, terminal):
    job = server.submit("sleep 1000", name="long")
    server.started(job)
    screen = terminal("top", "--interval", "0.2")
    screen.read_until(r"long.*runs on GPU 0")
    screen.hang_up()
    assert screen.process.wait(TIMEOUT_S) != 0
