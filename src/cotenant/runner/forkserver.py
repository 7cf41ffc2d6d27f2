"""Forks runners, which saves each of them the start of an interpreter.

Each message on the socket brings, as a descriptor, the channel of a new runner (see `reusable_runner.py`); the reply is
`<pid> <start ticks>` of that runner. When the other end closes, this process ends; its runners go on.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pwd  # loaded before the fork for `privileges`, which uses it after
import select
import socket
import sys
import traceback
from typing import NoReturn

from cotenant.runner import procfs, reusable_runner

__all__ = ["pwd", "serve"]

REAP_MS = 1000


def serve(channel: int) -> int:
    """Fork runners until the other end of `channel` closes; returns the exit code."""
    gc.collect()
    gc.freeze()  # a collection in a runner then does not write to, and so copy, pages shared with this process
    with socket.socket(fileno=channel) as link:
        poller = select.poll()
        poller.register(link, select.POLLIN)
        while True:
            ready = poller.poll(REAP_MS)
            _reap()
            if not ready:
                continue
            try:
                message, descriptors, _, _ = socket.recv_fds(link, 64, 1)
            except ConnectionError:
                return 0
            if not message:
                return 0
            (runners_end,) = descriptors
            os.set_inheritable(runners_end, False)  # noqa: FBT003 - takes no keyword
            pid = os.fork()
            if pid == 0:
                link.close()
                _become_runner(runners_end)
            os.close(runners_end)
            # It has not been reaped, so the pid is its own even if it has ended.
            stat = procfs.stat(pid)
            with contextlib.suppress(OSError):
                link.send(f"{pid} {stat.start_ticks if stat else 0}".encode())


def _become_runner(channel: int) -> NoReturn:
    code = 1
    try:
        code = reusable_runner.serve(channel)
    except BaseException:  # noqa: BLE001 - whatever it was, this process must not go on as a fork server
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
