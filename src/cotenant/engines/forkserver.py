"""Starts runners by forking a process that has loaded the interpreter already; its side is `runner/forkserver.py`."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.job import ProcessId
from cotenant.osutil import procfs
from cotenant.osutil.open_files import restore_open_files

REPLY_TIMEOUT_S = 30.0
"""A fork takes a millisecond; a fork server that needs this long hangs, and another is started."""

MAX_IDLE = 24
"""Idle runners for attempts to come: about as many as can be between a start and an end at once."""

IDLE_TIMEOUT_S = 60.0
"""This long after the last attempt has ended all idle runners but one are ended: each holds 2 MiB."""

MAX_MESSAGE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReusableRunner:
    """A process that runs one attempt at a time, and the channel to it; its side is `runner/reusable_runner.py`."""

    process: ProcessId
    channel: socket.socket

    def assign(self, attempt_dir: str | Path) -> None:
        """Let it run the attempt in `attempt_dir`.

        Raises:
            OSError: it has ended.
        """
        self.channel.send(os.fsencode(attempt_dir))

    def receive(self) -> bytes:
        r"""The next message: b"started\n", b"ended", or b"" once the runner has ended.

        Raises:
            BlockingIOError: there is none yet.
        """
        try:
            return self.channel.recv(MAX_MESSAGE_BYTES)
        except ConnectionError:
            return b""


class RunnerForkServer:
    """The fork server, started when first needed and again if it has died, and the runners that are idle.

    `program` is the runner's folder.
    """

    def __init__(self, program: Path) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._idle: list[ReusableRunner] = []  # the last one is the newest
        self._idle_since_s = 0.0

    def start_runner(self, attempt_dir: str | Path) -> ReusableRunner:
        """A runner, idle before or new, that has been assigned the attempt in `attempt_dir`.

        Raises:
            OSError: none could be started.
        """
        while True:
            with self._lock:
                if not self._idle:
                    break
                runner = self._idle.pop()
            try:
                runner.assign(attempt_dir)
            except OSError:
                runner.channel.close()  # it died while idle
            else:
                return runner
        with self._lock:
            runner = self._fork_with_retry()
        try:
            runner.assign(attempt_dir)
        except OSError:
            runner.channel.close()
            raise
        return runner

    def release(self, runner: ReusableRunner) -> None:
        """Return a runner that has sent `ended`; from now on it must not be signaled."""
        with self._lock:
            self._idle_since_s = time.monotonic()
            if len(self._idle) < MAX_IDLE:
                self._idle.append(runner)
                return
        runner.channel.close()

    def trim_idle(self) -> float | None:
        """End the idle runners but one if it is time to; seconds until it will be, None if there is nothing to end."""
        with self._lock:
            if len(self._idle) < 2:
                return None
            due_s = self._idle_since_s + IDLE_TIMEOUT_S - time.monotonic()
            if due_s > 0:
                return due_s
            for runner in self._idle[:-1]:
                runner.channel.close()
            del self._idle[:-1]
            return None

    def close(self) -> None:
        """End the fork server and the idle runners; those that run an attempt go on."""
        with self._lock:
            for runner in self._idle:
                runner.channel.close()
            self._idle.clear()
            self._stop_server()

    def _fork_with_retry(self) -> ReusableRunner:
        try:
            return self._fork()
        except OSError:
            # The server died, perhaps with a runner half started. It ends, since its channel is closed.
            self._stop_server()
            return self._fork()

    def _fork(self) -> ReusableRunner:
        # SOCK_SEQPACKET keeps message boundaries, and each end sees when the other one has closed (unix(7)).
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                process = self._request_fork(theirs)
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)  # noqa: FBT003 - takes no keyword
        return ReusableRunner(process=process, channel=ours)

    def _request_fork(self, runners_end: socket.socket) -> ProcessId:
        channel = self._channel or self._start_server()
        socket.send_fds(channel, [b"runner"], [runners_end.fileno()])
        reply = channel.recv(MAX_MESSAGE_BYTES).split()
        if len(reply) != 2:
            raise ConnectionResetError(104, "the runners' fork server has ended")
        return ProcessId(pid=int(reply[0]), start_ticks=int(reply[1]), boot_id=procfs.boot_id())

    def _start_server(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(REPLY_TIMEOUT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(self._program), "--forkserver", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        restore_open_files(self._process.pid)  # before it forks: jobs get the limit that the daemon was started with
        self._channel = ours
        return ours

    def _stop_server(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.5)
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
        self._channel = self._process = None
