"""A runner that is ready before it is needed: forks others, which saves each of them the start of an interpreter.

Over the socket comes, in one message, the channel of a runner to be (see `pool.py`). Back goes `<pid> <start ticks>` of
that runner. When the other end closes, this process ends; its runners go on.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pwd  # used after the fork, by `child`
import select
import socket
import sys
import traceback
from typing import NoReturn

from cotenant.runner import procfs, reusable_runner

__all__ = ["pwd", "serve"]

REAP_MS = 1000


def serve(channel: int) -> int:
    """Fork runners until the other end of `channel` closes; the exit code."""
    gc.collect()
    gc.freeze()  # so that the collector of a runner does not copy pages that it shares with us
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
            # Not yet reaped, so the pid is still its own, however short it lived.
            found = procfs.stat(pid)
            with contextlib.suppress(OSError):
                link.send(f"{pid} {found.start_ticks if found else 0}".encode())


def _become_runner(channel: int) -> NoReturn:
    code = 1
    try:
        code = reusable_runner.serve(channel)
    except BaseException:  # noqa: BLE001 - whatever it was, this must not go on as a zygote
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
