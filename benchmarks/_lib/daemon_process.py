"""Starts, kills and stops a private daemon for a benchmark, and removes its folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
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

FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_TOPDIR_FL = 0x80086601, 0x40086602, 0x00020000
"""Source: ioctl_iflags(2)."""


class Server:
    """A daemon process on simulated GPUs, with its state in `root`, and its socket there or in `runtime`.

    `gpus`: None for those that its configuration names.
    `python`, `env`: its interpreter, and variables for it; jobs of other users need one that they may run.
    """

    def __init__(
        self,
        root: Path,
        *,
        gpus: str | None = "8xA100-40GB",
        tick_s: float = 0.1,
        time_scale: float = 1.0,
        flags: Sequence[str] = (),
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        runtime: Path | None = None,
    ) -> None:
        self.root = root
        self.socket = (runtime or root) / "sock"
        simulated = () if gpus is None else ("--simulate", gpus, "--time-scale", str(time_scale))
        places = ("--socket", str(self.socket), "--state-dir", str(root / "state"))
        self._flags = (*simulated, "--tick", str(tick_s), *places, "--log-level", "error", *flags)
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

    def run(self, count: int) -> None:
        """Submit `count` jobs `/bin/true` and wait for them; the newest are waited for, which lists no jobs."""
        submitted = self.client.submit(self.jobs(count))
        for job in reversed(submitted[-64:]):
            self.client.wait(int(job["id"]))
        self.wait_for_all()

    def wait_for_all(self) -> None:
        while self.client.jobs(active=True, last=1):
            time.sleep(0.01)


@contextlib.contextmanager
def timed_server(**settings: object) -> Iterator[Server]:
    """`server` for measurements of time, with its files where those of a deployed daemon are.

    The socket, beside which the daemon keeps the progress files of jobs, is in memory, as in /run; the state is in a
    block group of its own, as in /var/lib. ext4 reuses no inode for a minute or more after its deletion, and each new
    file of a block group searches past all of these (Linux, fs/ext4/ialloc.c, `recently_deleted`): what an earlier run
    deleted in /tmp made the next one up to three times as slow.
    """
    memory = Path("/dev/shm")
    runtime = Path(tempfile.mkdtemp(prefix="cotenant-bench-", dir=memory if memory.is_dir() else None))
    parent = Path(tempfile.mkdtemp(prefix="cotenant-bench-"))
    _spread_folders(parent)
    try:
        with server(root=parent / "daemon", runtime=runtime, **settings) as found:
            yield found
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
        shutil.rmtree(parent, ignore_errors=True)


def _spread_folders(folder: Path) -> None:
    """Let each new folder in `folder` begin in another block group: `chattr +T`. Ignored where that is unknown."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, struct.pack("l", 0)))
            fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, struct.pack("l", flags | FS_TOPDIR_FL))
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def server(*, root: Path | None = None, **settings: object) -> Iterator[Server]:
    """A started daemon; on exit its active jobs are cancelled, and it is stopped and removed."""
    root = Path(tempfile.mkdtemp(prefix="cotenant-bench-")) if root is None else root
    root.mkdir(exist_ok=True)
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
