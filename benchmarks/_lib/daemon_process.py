"""Starts, kills and stops a private daemon for a benchmark, and removes its folder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from cotenant.core.errors import CotenantError
from cotenant.core.units import GiB
from cotenant.daemon.client import Client


class Server:
    """A daemon process on simulated GPUs, with socket and state in `root`.

    `python`, `env`: its interpreter, and variables for it; jobs of other users need one that they may run.
    """

    def __init__(
        self,
        root: Path,
        *,
        gpus: str = "8xA100-40GB",
        tick_s: float = 0.1,
        time_scale: float = 1.0,
        flags: Sequence[str] = (),
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.root = root
        self.socket = root / "sock"
        simulation = ("--simulate", gpus, "--time-scale", str(time_scale), "--tick", str(tick_s))
        places = ("--socket", str(self.socket), "--state-dir", str(root / "state"))
        self._flags = (*simulation, *places, "--log-level", "error", *flags)
        self._python = python
        self._env = {**os.environ, **(env or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Client(self.socket, timeout_s=120)

    def start(self) -> None:
        read_end, write_end = os.pipe()
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._python, "-m", "cotenant", "daemon", *self._flags, "--ready-fd", str(write_end)],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write_end,),
            )
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            answer = json.loads(pipe.read() or b"{}")
        if "pid" not in answer:
            raise SystemExit(f"the daemon did not start: {answer} {(self.root / 'log').read_text()[-2000:]}")

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def abandon(self, running: Sequence[int]) -> None:
        """Stop the daemon and the `running` jobs without draining the queue."""
        pids = [self.client.job(job_id)["attempt_list"][0]["pid"] for job_id in running]
        self.stop()
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=30)
        self._process = None

    @property
    def is_up(self) -> bool:
        return self._process is not None

    def jobs(self, count: int, *command: str, **fields: object) -> list[dict[str, object]]:
        job = {"command": command or ("/bin/true",), "workdir": "/", "env": {"PATH": "/bin"}, "name": "j"}
        return [{**job, "declared_bytes": GiB // 4, **fields} for _ in range(count)]

    def wait_for_all(self) -> None:
        while self.client.jobs(active=True, last=1):
            time.sleep(0.01)


@contextlib.contextmanager
def server(**settings: object) -> Iterator[Server]:
    """A started daemon; on exit its active jobs are cancelled, and it is stopped and removed."""
    root = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    started = Server(root, **settings)  # type: ignore[arg-type]
    started.start()
    try:
        yield started
    finally:
        if started.is_up:
            with contextlib.suppress(CotenantError):
                for job in started.client.jobs(active=True):
                    with contextlib.suppress(CotenantError):
                        started.client.cancel(job["id"])
                started.wait_for_all()
            started.stop()
        shutil.rmtree(root, ignore_errors=True)
