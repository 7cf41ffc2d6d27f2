"""A daemon on a simulated server for one run of a trace.

Everything it writes is in one temporary folder, and it reads no configuration of the user: a daemon of the user is not
affected.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError, DaemonUnreachable
from cotenant.core.job import Job
from cotenant.daemon.client import Client
from cotenant.demo.published import PublishedJob
from cotenant.jobfiles.rad import parse_rad
from cotenant.scheduling.config import ManagerConfig

SERVER = "4xA100-40GB"
POLL_S = 0.25
TICK_S = 0.1
START_LIMIT_S = 30.0
END_LIMIT_S = 10.0
WINDOW_TICKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoStatus:
    """State of a run: the server's time, the jobs submitted so far of `total`, and the GPUs."""

    elapsed_s: float
    total: int
    jobs: Sequence[Job]
    gpus: Sequence[dict[str, Any]]

    @property
    def is_over(self) -> bool:
        """Whether all jobs were submitted and are done."""
        return len(self.jobs) == self.total and all(job.is_done for job in self.jobs)


class DemoServer:
    """A daemon with a simulated server; use `demo_server` to make one."""

    def __init__(self, folder: Path, policy: str, options: Mapping[str, object], time_scale: float) -> None:
        self.time_scale = time_scale
        self._folder = folder
        self._log = folder / "daemon.log"
        self.client = Client(folder / "sock")
        self._process = self._start(policy, options)

    @property
    def socket(self) -> Path:
        """The socket of its daemon."""
        return self._folder / "sock"

    def run(self, trace: Sequence[PublishedJob], show: Callable[[DemoStatus], None], *, limit_s: float) -> list[Job]:
        """Submit the jobs of `trace` at their arrivals and wait for all; `show` gets the status every 0.25 s.

        Raises:
            CotenantError: jobs are not done after `limit_s` of wall-clock time.
        """
        waiting = deque(trace)
        began_s = time.monotonic()
        while True:
            elapsed_s = time.monotonic() - began_s
            while waiting and waiting[0].arrival_s <= elapsed_s * self.time_scale:
                self._submit(waiting.popleft())
            progress = DemoStatus(
                elapsed_s=elapsed_s * self.time_scale,
                total=len(trace),
                jobs=self.client.records(),
                gpus=self.client.gpus(),
            )
            show(progress)
            if progress.is_over:
                return list(progress.jobs)
            if elapsed_s > limit_s:
                left = len(trace) - sum(job.is_done for job in progress.jobs)
                raise CotenantError(f"{left} of {len(trace)} jobs are not done after {limit_s:.0f} s")
            time.sleep(POLL_S)

    def close(self) -> None:
        """Cancel unfinished jobs, stop the daemon, and wait until it has exited."""
        try:
            with contextlib.suppress(CotenantError):
                self._cancel_all()
                self.client.shutdown()
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()

    def _start(self, policy: str, options: Mapping[str, object]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "cotenant", "daemon", "--simulate", SERVER, "--policy", policy]
        command += ["--time-scale", f"{self.time_scale:g}", "--tick", f"{TICK_S:g}"]
        command += ["--state-dir", str(self._folder / "state"), "--socket", str(self._folder / "sock")]
        with self._log.open("wb") as log:
            # In its own session, so that Ctrl-C reaches only this process, which then shuts the daemon down.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**_own_env(self._folder, self.time_scale), **_variables(options)},
                start_new_session=True,
            )
        try:
            self._await_answer(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        end_s = time.monotonic() + START_LIMIT_S
        while True:
            with contextlib.suppress(DaemonUnreachable):
                self.client.status()
                return
            if process.poll() is not None or time.monotonic() > end_s:
                lines = self._log.read_text(errors="replace").strip().splitlines()
                raise CotenantError(f"the demo's daemon did not start: {lines[-1] if lines else 'no output'}")
            time.sleep(0.05)

    def _submit(self, job: PublishedJob) -> None:
        """Write the job file, parse it and submit the job."""
        path = self._folder / f"{job.number:02d}-{job.workload}.rad"
        command = [sys.executable, "-m", "cotenant.simserver.fake_job", "--workload", job.workload]
        path.write_text(job.rad_text(shlex.join(command)), encoding="utf-8")
        rad = parse_rad(path.read_text(encoding="utf-8"), str(path))
        self.client.submit(
            [
                {
                    "command": rad.argv,
                    "workdir": str(self._folder),
                    "env": {"PATH": os.environ.get("PATH", "")},
                    "name": job.workload,
                    "gpus": rad.gpus,
                    "declared_bytes": rad.memory_bytes["measured"],
                    "source": str(path),
                }
            ]
        )

    def _cancel_all(self) -> None:
        unfinished = [str(job.id) for job in self.client.records() if not job.is_done]
        if unfinished:
            self.client.change_many("cancel", unfinished)  # tolerates those that have ended meanwhile
        end_s = time.monotonic() + END_LIMIT_S
        while any(not job.is_done for job in self.client.records()) and time.monotonic() < end_s:
            time.sleep(0.05)


@contextlib.contextmanager
def demo_server(policy: str, *, time_scale: float, options: Mapping[str, object] | None = None) -> Iterator[DemoServer]:
    """A server for the duration of a `with` block, with these policy options.

    Raises:
        CotenantError: the daemon did not start.
    """
    folder = Path(tempfile.mkdtemp(prefix="cotenant-demo-"))
    try:
        server = DemoServer(folder, policy, options or {}, time_scale)
        try:
            yield server
        finally:
            with uninterrupted():
                server.close()
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Put SIGINT and SIGTERM off to the end of a cleanup.

    Raises:
        KeyboardInterrupt: one of them came meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if received:
        raise KeyboardInterrupt


def _own_env(folder: Path, time_scale: float) -> dict[str, str]:
    """Our environment without the variables that lead to the files of the user and the machine."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("COTENANT_")}
    ours = ("COTENANT_SYSTEM_CONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
    folders = {key: str(folder / key.lower()) for key in ours}
    return {**inherited, **folders, "COTENANT_SCHEDULING__WINDOW_S": f"{window_s(time_scale):g}"}


def _variables(options: Mapping[str, object]) -> dict[str, str]:
    """Policy options as environment variables of the daemon."""
    return {f"COTENANT_POLICY__OPTIONS__{name.upper()}": str(value) for name, value in options.items()}


def window_s(time_scale: float) -> float:
    """The daemon's telemetry window: the default on the server's clock, but at least two ticks.

    The daemon scales the delays of its policy; its samples are on its own clock.
    """
    return max(WINDOW_TICKS * TICK_S, ManagerConfig().window_s / time_scale)
