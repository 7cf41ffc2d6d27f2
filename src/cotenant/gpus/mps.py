"""MPS: several processes of one user share one CUDA context of a GPU, so that their kernels run side by side.

There is one control daemon per GPU and user, in folders of our own: an MPS server serves one user at a time, and a
client that faults ends all clients of its server, so users never share one. Control daemons of others, at the default
pipe folder or elsewhere, are never contacted.

Source: NVIDIA, Multi-Process Service (deploy/mps), "Tools and interface reference". The memory limit needs CUDA 11.5.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.errors import BackendError
from cotenant.core.units import MiB

logger = logging.getLogger(__name__)

COMMAND = "nvidia-cuda-mps-control"
TIMEOUT_S = 5.0
MAX_SOCKET_PATH_BYTES = 107
"""Longest path of a unix socket: 108 bytes in `sockaddr_un.sun_path`, the last one zero (unix(7))."""
_SOCKET_NAME = "/control_privileged"  # the longest name that the control daemon opens in its pipe folder


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsState:
    """State of a control daemon.

    Attributes:
        is_running: whether it answers.
        servers: status of each server by pid: `ACTIVE`, `FAULT`, ...; None where the driver is too old to report it.
    """

    is_running: bool
    servers: Mapping[int, str | None]

    @property
    def faulted(self) -> bool:
        """A client crashed in a way that ends all clients of its server; new clients wait until all have ended."""
        return any(status == "FAULT" for status in self.servers.values())


class MpsServers:
    """The control daemons that cotenant has started, also before a restart; each has its own folder in `folder`.

    Calls run a program and wait for it, at most `TIMEOUT_S`. Never called from two threads at once.
    """

    def __init__(self, folder: Path, *, command: str = COMMAND) -> None:
        self.folder = folder
        self._command = command

    @property
    def available(self) -> bool:
        """Whether MPS is installed here."""
        return shutil.which(self._command) is not None

    def client_env(
        self, gpu_uuid: str, uid: int, *, memory_limit_bytes: int | None = None, thread_percent: float | None = None
    ) -> dict[str, str]:
        """Environment that makes a process of `uid` an MPS client on that GPU; starts the control daemon if need be.

        `memory_limit_bytes` bounds what the process may allocate, context included; `thread_percent` is the share of
        the SMs that its kernels may use.

        Raises:
            BackendError: MPS is not installed, or the control daemon does not start.
        """
        home = self._home(gpu_uuid, uid)
        if not self.state(gpu_uuid, uid).is_running:
            self._start(home, gpu_uuid, uid)
        env = _directories(home)
        if memory_limit_bytes is not None:
            env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={max(1, memory_limit_bytes // MiB)}M"
        if thread_percent is not None:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{thread_percent:g}"
        return env

    def state(self, gpu_uuid: str, uid: int) -> MpsState:
        """State of the control daemon of that GPU and user."""
        home = self._home(gpu_uuid, uid)
        if not (home / "pipe").exists():
            return MpsState(is_running=False, servers={})
        listed = self._control(home, "get_server_list")
        if listed is None:
            return MpsState(is_running=False, servers={})
        pids = [int(line) for line in listed.split() if line.isdigit()]
        servers = {pid: _status(self._control(home, f"get_server_status {pid}")) for pid in pids}
        return MpsState(is_running=True, servers=servers)

    def known(self) -> set[tuple[str, int]]:
        """GPU and user of every control daemon that was started and not ended."""
        found = set()
        for home in self.folder.glob("*/gpu"):
            with contextlib.suppress(OSError, ValueError):
                gpu_uuid, uid = home.read_text().split()
                found.add((gpu_uuid, int(uid)))
        return found

    def running(self) -> set[tuple[str, int]]:
        """Those of `known` that answer."""
        return {owner for owner in self.known() if self.state(*owner).is_running}

    def stop_all_but(self, in_use: Collection[tuple[str, int]]) -> None:
        """End the control daemons that are not `in_use`; one that does not end is tried again by the next call."""
        for gpu_uuid, uid in self.known():
            if (gpu_uuid, uid) in in_use:
                continue
            home = self._home(gpu_uuid, uid)
            self._control(home, "quit")
            if not self.state(gpu_uuid, uid).is_running:
                shutil.rmtree(home, ignore_errors=True)

    def _home(self, gpu_uuid: str, uid: int) -> Path:
        """Its folder; a short name, because the path of a socket inside is limited to `MAX_SOCKET_PATH_BYTES`."""
        return self.folder / f"{gpu_uuid.removeprefix('GPU-').removeprefix('MIG-')[:13]}-{uid}"

    def _start(self, home: Path, gpu_uuid: str, uid: int) -> None:
        pipe = home / "pipe"
        if len(str(pipe)) + len(_SOCKET_NAME) > MAX_SOCKET_PATH_BYTES:
            raise BackendError(f"`{pipe}` is too long for a socket", hint="choose a shorter state folder")
        if not self.available:
            raise BackendError(
                f"MPS was requested, but there is no `{self._command}`", hint="it comes with the NVIDIA driver"
            )
        for path in (pipe, home / "log"):
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if uid != os.geteuid():
                os.chown(path, uid, -1)
        (home / "gpu").write_text(f"{gpu_uuid} {uid}\n")
        env = {"PATH": os.environ.get("PATH", os.defpath), "CUDA_VISIBLE_DEVICES": gpu_uuid, **_directories(home)}
        done = self._run(["-d"], env, text="", **_as_user(uid))
        if done is None or done[0] != 0 or not self.state(gpu_uuid, uid).is_running:
            output = done[1].strip() if done is not None else f"no answer within {TIMEOUT_S:g} s"
            raise BackendError(
                f"MPS does not start on {gpu_uuid}: {output or 'it printed nothing'}", hint=f"see `{home}/log`"
            )
        logger.info("MPS started", extra={"fields": {"gpu": gpu_uuid, "uid": uid}})

    def _control(self, home: Path, command: str) -> str | None:
        """Send a command to the control daemon; its answer, None if there is none."""
        env = {"PATH": os.environ.get("PATH", os.defpath), **_directories(home)}
        done = self._run([], env, text=f"{command}\n")
        if done is None or done[0] != 0 or "Cannot find MPS control daemon process" in done[1]:
            return None
        return done[1]

    def _run(self, flags: list[str], env: Mapping[str, str], *, text: str, **options: Any) -> tuple[int, str] | None:
        """Exit code and output; None where it cannot be run or takes too long."""
        # A file, not a pipe: the control daemon that `-d` starts inherits standard output and keeps it open.
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            try:
                done = subprocess.run(
                    [self._command, *flags],
                    input=text,
                    env=dict(env),
                    stdout=output,
                    stderr=output,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=False,
                    cwd="/",
                    **options,
                )
            except (OSError, subprocess.TimeoutExpired):
                return None
            output.seek(0)
            return done.returncode, output.read()


def _directories(home: Path) -> dict[str, str]:
    return {"CUDA_MPS_PIPE_DIRECTORY": str(home / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(home / "log")}


def _as_user(uid: int) -> dict[str, Any]:
    if uid == os.geteuid():
        return {}
    account = pwd.getpwuid(uid)
    return {"user": uid, "group": account.pw_gid, "extra_groups": os.getgrouplist(account.pw_name, account.pw_gid)}


def _status(answer: str | None) -> str | None:
    """`ACTIVE`, whether the driver answers with the word or with a sentence; None where the command is unknown."""
    for known in ("ACTIVE", "FAULT", "INITIALIZING"):
        if answer is not None and known in answer.upper():
            return known
    return None
