"""A runner of many attempts, one after another, which saves each of them a fork and its page faults.

The channel brings the folders of attempts. The runner sends `started` once the program of the job runs, and `ended`
once nothing is left of it and its result is written; then the next folder may come. The engine, which receives `ended`,
saves the result in the journal; if the engine is gone, the runner brings it to the disk. A runner ends when the channel
closes, but not before the attempt that it runs, and after an attempt that left something behind in its session.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import sys

from cotenant.runner import files
from cotenant.runner.attempt import SIGNALS, attempt, prepare

MAX_MESSAGE_BYTES = 16 * 1024


def serve(channel: int) -> int:
    """Run the attempts that arrive on `channel` until it closes; returns the exit code."""
    me = prepare()
    with socket.socket(fileno=channel) as link:
        while folder := _next_folder(link):
            sys.stdout = sys.stderr = _Log(f"{folder}/runner.log")
            _discard_pending_signals()
            _, is_clean = attempt(folder, me, channel, durable=False)
            if not _report_end(link):
                with contextlib.suppress(OSError):
                    files.sync(f"{folder}/result.json")
                return 0
            if not is_clean:
                return 0
    return 0


def _next_folder(link: socket.socket) -> str:
    """The next attempt's folder; "" when the channel has closed."""
    try:
        return os.fsdecode(link.recv(MAX_MESSAGE_BYTES))
    except ConnectionError:
        return ""


class _Log(io.TextIOBase):
    """The log for this process' own output, e.g. a traceback. Most attempts have none, and so no file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, text: str) -> int:
        """Append `text` to the file."""
        log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(log, text.encode(errors="replace"))
        finally:
            os.close(log)
        return len(text)


def _discard_pending_signals() -> None:
    """Drop a SIGTERM that is pending: it was sent before this folder, so it was meant for the attempt before."""
    while signal.sigtimedwait(SIGNALS, 0) is not None:
        pass


def _report_end(link: socket.socket) -> bool:
    try:
        link.send(b"ended")
    except OSError:
        return False
    return True
