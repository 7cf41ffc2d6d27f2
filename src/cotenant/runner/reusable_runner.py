"""A runner of many attempts, one after another: the memory that it has touched once stays its own.

Over its channel come the folders of attempts. Back go `started`, once the program of the job runs, and `ended`, once
nothing is left of it and its result is there; then the next folder may come. Who hears `ended` keeps the result in a
journal; where nobody does, it is made durable here. A runner ends when the channel closes, though not before the
attempt that it is at, and after one that has left something which nobody else must find in its session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from cotenant.runner import files
from cotenant.runner.attempt import SIGNALS, attempt, prepare

MAX_MESSAGE_BYTES = 16 * 1024


def serve(channel: int) -> int:
    """Run the attempts that `channel` names until it closes; the exit code."""
    me = prepare()
    with socket.socket(fileno=channel) as link:
        while folder := _next_folder(link):
            _log_to(f"{folder}/runner.log")
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
    """What is next; "" at the end."""
    try:
        return os.fsdecode(link.recv(MAX_MESSAGE_BYTES))
    except ConnectionError:
        return ""


def _log_to(path: str) -> None:
    """What this process itself has to say, a traceback for one, belongs to the attempt that it is at."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)


def _discard_pending_signals() -> None:
    """A stop that came after the end of the last attempt was meant for that one: it was sent before this folder was."""
    while signal.sigtimedwait(SIGNALS, 0) is not None:
        pass


def _report_end(link: socket.socket) -> bool:
    try:
        link.send(b"ended")
    except OSError:
        return False
    return True
