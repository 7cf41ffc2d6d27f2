"""Starts runners by asking a process that has everything loaded already; see `runner/forkserver.py`."""

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
from cotenant.engines import processes

REPLY_TIMEOUT_S = 30.0
"""A fork takes a millisecond; a zygote that takes so long is stuck, and another is started."""

MAX_IDLE = 24
"""Runners that are kept for attempts to come: about as many as can be between a start and an end at once."""

IDLE_TIMEOUT_S = 60.0
"""So long after the last attempt has ended they are let go, all but one: each holds 2 MiB."""

MAX_MESSAGE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReusableRunner:
    """A process that runs one attempt at a time, and the channel to it; see `runner/reusable_runner.py`."""

    process: ProcessId
    channel: socket.socket

    def assign(self, folder: Path) -> None:
        """Let it run the attempt in `folder`.

        Raises:
            OSError: it has ended.
        """
        self.channel.send(os.fsencode(folder))

    def receive(self) -> bytes:
        """What it has said: `started`, `ended`, or b"" if it is no more.

        Raises:
            BlockingIOError: nothing so far.
        """
        try:
            return self.channel.recv(MAX_MESSAGE_BYTES)
        except ConnectionError:
            return b""


class RunnerForkServer:
    """The process that forks runners, started when first needed and anew if it has died, and the runners that are idle.

    `program` is the runner's folder.
    """

    def __init__(self, program: Path) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._idle: list[ReusableRunner] = []  # the last is the newest
        self._idle_since_s = 0.0

    def start_runner(self, folder: Path) -> ReusableRunner:
        """A runner that has been given the attempt in `folder`: one that was idle, or a new one.

        Raises:
            OSError: none could be started.
        """
        while True:
            with self._lock:
                if not self._idle:
                    break
                runner = self._idle.pop()
            try:
                runner.assign(folder)
            except OSError:
                runner.channel.close()
            else:
                return runner
        with self._lock:
            runner = self._forked()
        try:
            runner.assign(folder)
        except OSError:
            runner.channel.close()
            raise
        return runner

    def release(self, runner: ReusableRunner) -> None:
        """Keep for later a runner that has said `ended`; nobody may signal it from now on."""
        with self._lock:
            self._idle_since_s = time.monotonic()
            if len(self._idle) < MAX_IDLE:
                self._idle.append(runner)
                return
        runner.channel.close()

    def trim_idle(self) -> float | None:
        """Let go of runners that nobody has needed; when to look again, or None."""
        with self._lock:
            if len(self._idle) < 2:
                return None
            due_s = self._idle_since_s + IDLE_TIMEOUT_S - time.monotonic()
            if due_s > 0:
                return due_s
            for each in self._idle[:-1]:
                each.channel.close()
            del self._idle[:-1]
            return None

    def _forked(self) -> ReusableRunner:
        try:
            return self._fork()
        except OSError:
            # It died, perhaps with a runner half started, which ends at once: nobody holds the channel to it.
            self._drop()
            return self._fork()

    def _fork(self) -> ReusableRunner:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                process = self._ask(theirs)
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)  # noqa: FBT003 - takes no keyword
        return ReusableRunner(process=process, channel=ours)

    def _ask(self, runners_end: socket.socket) -> ProcessId:
        channel = self._channel or self._spawn()
        socket.send_fds(channel, [b"runner"], [runners_end.fileno()])
        answer = channel.recv(MAX_MESSAGE_BYTES).split()
        if len(answer) != 2:
            raise ConnectionResetError(104, "the process that starts runners has ended")
        return ProcessId(pid=int(answer[0]), start_ticks=int(answer[1]), boot_id=processes.boot_id())

    def _spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(REPLY_TIMEOUT_S)
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
        """End it and the idle runners; those that run an attempt go on."""
        with self._lock:
            for each in self._idle:
                each.channel.close()
            self._idle.clear()
            self._drop()
