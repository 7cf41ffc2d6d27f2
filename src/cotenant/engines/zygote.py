"""Starts runners by asking a process that has everything loaded already; see `runner/zygote.py`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from cotenant.core.job import ProcessId
from cotenant.engines import processes

ANSWER_S = 30.0
"""A fork takes a millisecond; a zygote that takes so long is stuck, and another is started."""


class Zygote:
    """The process that forks runners; started when first needed, and anew if it has died.

    `program` is the runner's folder.
    """

    def __init__(self, program: Path) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def start_runner(self, folder: Path, notify: int, log: int) -> ProcessId:
        """A runner for the attempt in `folder`, which tells of the start on `notify` and closes it at its end.

        Raises:
            OSError: none could be started.
        """
        with self._lock:
            try:
                return self._ask(folder, notify, log)
            except OSError:
                # It died, perhaps with the runner half started: the claim sees to it that only one runs the attempt.
                self._drop()
                return self._ask(folder, notify, log)

    def _ask(self, folder: Path, notify: int, log: int) -> ProcessId:
        channel = self._channel or self._spawn()
        socket.send_fds(channel, [os.fsencode(folder)], [notify, log])
        answer = channel.recv(64).split()
        if len(answer) != 2:
            raise ConnectionResetError(104, "the process that starts runners has ended")
        return ProcessId(pid=int(answer[0]), start_ticks=int(answer[1]), boot_id=processes.boot_id())

    def _spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(ANSWER_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(self._program), "--zygote", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._channel = ours
        return ours

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.5)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        self._channel = self._process = None

    def close(self) -> None:
        """End it; the runners go on."""
        with self._lock:
            self._drop()
