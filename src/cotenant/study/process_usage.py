"""CPU time and memory of a session of processes, from /proc, while they run.

Source: rusage of ended processes: wait4(2).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cotenant.core.errors import CotenantError
from cotenant.osutil.procfs import UsageSample, session_pids, session_usage


@dataclass(slots=True)
class SessionProcess:
    """A command in a session of its own, with its usage over time.

    Raises:
        CotenantError: the command cannot be started.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    workdir: str
    stdout: Path
    samples: list[UsageSample] = field(default_factory=list)
    began_s: float = 0.0
    ended_s: float | None = None
    code: int | None = None
    cpu_s: float = 0.0
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        self.began_s = time.time()
        try:
            with self.stdout.open("wb") as sink:
                self._process = subprocess.Popen(
                    list(self.command), cwd=self.workdir, env=dict(self.env), stdin=subprocess.DEVNULL,
                    stdout=sink, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CotenantError(f"cannot start `{self.command[0]}`: {reason}") from error

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs. The first call after its end reads its CPU time.

        wait4(2) gives the CPU time of the process and of the children that it waited for: those that ended between two
        samples count, too.
        """
        assert self._process is not None
        if self.code is None:
            try:
                pid, status, usage = os.wait4(self._process.pid, os.WNOHANG)
            except ChildProcessError:  # reaped by another thread; no usage
                pid, status, usage = self._process.pid, 0, None
            if pid:
                self.ended_s = time.time()
                self.code = os.waitstatus_to_exitcode(status)
                self._process.returncode = self.code
                if usage is not None:
                    self.cpu_s = max(self.cpu_s, usage.ru_utime + usage.ru_stime)
        return self.code

    def sample(self) -> None:
        """Add a sample of all processes of the session."""
        if self._process is None or self.poll() is not None:
            return
        found = session_usage(self._process.pid)
        self.cpu_s = max(self.cpu_s, found.cpu_s)
        self.samples.append(found)

    def stop(self, timeout_s: float) -> bool:
        """Interrupt it and wait; kill what is left after `timeout_s`. Whether it ended by itself."""
        if self._process is None:
            return True
        group = self._process.pid
        if self.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGINT)
        limit_s = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < limit_s:
            time.sleep(0.02)
        in_time = self.code is not None
        for pid in session_pids(group) - ({group} if in_time else set()):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.01)
        return in_time

    @property
    def peak_rss_bytes(self) -> int | None:
        """The largest sum of resident memory; None without a sample."""
        return max((sample.rss_bytes for sample in self.samples), default=None)
