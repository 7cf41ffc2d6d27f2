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
import threading

import pytest

TIMEOUT_S = 60


class Terminal:
    """A pseudo-terminal of 120 x 30 cells with a program on it.

    A thread reads all that the program writes: the kernel holds 4 KiB of it, and a program that redraws a screen
    which nobody reads waits in `write` and no longer sees its keys.
    """

    def __init__(self, server, *words):
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        env = {**server.env, "TERM": "xterm-256color", "NO_COLOR": "1"}
        self.process = subprocess.Popen([*server.command, *words], env=env, stdin=other, stdout=other, stderr=other)
        os.close(other)
        self._written = ""
        self._changed = threading.Condition()
        self._end, self._hang_up = os.pipe()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        while self._end not in select.select([self._main, self._end], [], [])[0]:
            try:
                written = os.read(self._main, 65536)
            except OSError:  # EIO: the program has ended
                return
            with self._changed:
                self._written += written.decode(errors="replace")
                self._changed.notify()

    def read_until(self, pattern):
        """Wait until `pattern` is written to the terminal, after what was found before."""
        with self._changed:
            found = self._changed.wait_for(lambda: re.search(pattern, self._written, re.DOTALL), TIMEOUT_S)
            assert found, self._written
            self._written = self._written[found.end() :]

    def press(self, keys):
        os.write(self._main, keys.encode())

    def hang_up(self):
        """Close the terminal while the program runs on it."""
        os.write(self._hang_up, b".")
        self._reader.join(TIMEOUT_S)
        os.close(self._main)
        self._main = -1

    def close(self):
        self.process.kill()
        self.process.wait()
        if self._main >= 0:
            self.hang_up()
        os.close(self._end)
        os.close(self._hang_up)


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
    screen.read_until(r"runs on GPU 0")
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
