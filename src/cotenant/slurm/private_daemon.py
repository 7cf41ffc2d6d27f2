"""The daemon of a pack: on the GPUs of its allocation only, on a socket in a private folder, and no longer than it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cotenant.core.errors import BackendError
from cotenant.daemon.client import Client
from cotenant.engines.leftovers import kill_leftovers

TAG_VARIABLE = "COTENANT_PACK"
"""Marks every process of a pack, so that none outlives it."""
PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
KILL_TIMEOUT_S = 10.0
_SECTIONS_OF_SERVERS = ("ACCESS", "DAEMON", "METRICS", "TCP", "WEB")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSettings:
    """Settings of the daemon of a pack.

    Attributes:
        visible: its GPUs, as CUDA_VISIBLE_DEVICES names them; None: all of the machine.
        simulate: a simulated server in place of the driver's GPUs, or None.
        policy: name of the policy, or None for the default; `policy_options`: its options.
        stop_grace_s: time between SIGTERM and SIGKILL for a job that is stopped.
        tick_s: seconds between two samples.
    """

    visible: str | None
    simulate: str | None = None
    policy: str | None = None
    policy_options: Mapping[str, str | float] = field(default_factory=dict)
    stop_grace_s: float = 60.0
    tick_s: float = 1.0

    def toml(self, state_dir: Path) -> str:
        """The configuration."""
        sections: dict[str, dict[str, str | float | None]] = {
            "daemon": {"state_dir": str(state_dir), "tick_s": self.tick_s, "fsync": "normal"},
            "gpus": {"visible": self.visible, "simulate": self.simulate},
            "policy": {"name": self.policy},
            "policy.options": dict(self.policy_options),
            "scheduling": {"stop_grace_s": self.stop_grace_s},
        }
        lines = []
        for section, values in sections.items():
            lines.append(f"[{section}]")
            # A string of JSON is one of TOML.
            lines += [f"{name} = {json.dumps(value)}" for name, value in values.items() if value is not None]
        return "\n".join(lines) + "\n"


class PrivateDaemon:
    """The running daemon.

    Attributes:
        client: for its socket.
        env: variables that its jobs get, with which `cotenant` finds it.
        process: it.
    """

    def __init__(self, client: Client, env: Mapping[str, str], process: subprocess.Popen[bytes], log: Path) -> None:
        self.client = client
        self.env = env
        self.process = process
        self.log = log

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.process.poll() is None


@contextlib.contextmanager
def private_daemon(settings: PackSettings) -> Iterator[PrivateDaemon]:
    """Start a daemon; at the end it and all processes of its jobs are gone, also if this process is killed.

    Raises:
        BackendError: it does not start; the message is its own.
    """
    tag = uuid.uuid4().hex
    # Orphans stay below this process, where Slurm looks for the processes of a job (proctrack/linuxproc).
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = Path(tempfile.mkdtemp(prefix="cotenant-pack-"))
    with _guard(tag, folder):
        yield _start(settings, folder, tag)


def _start(settings: PackSettings, folder: Path, tag: str) -> PrivateDaemon:
    (folder / "config.toml").write_text(settings.toml(folder / "state"))
    socket, log = folder / "sock", folder / "daemon.log"
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name != "COTENANT_HOST" and not name.startswith(tuple(f"COTENANT_{part}__" for part in _SECTIONS_OF_SERVERS))
    }
    own = {"COTENANT_SOCKET": str(socket), TAG_VARIABLE: tag}
    read_end, write_end = os.pipe()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "cotenant",
                "daemon",
                "--config",
                str(folder / "config.toml"),
                "--ready-fd",
                str(write_end),
            ],
            env={**inherited, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(write_end,),
            start_new_session=True,  # Ctrl-C is for us: the daemon would end before its jobs
        )
    os.close(write_end)
    with os.fdopen(read_end, "rb") as ready:
        answer = json.loads(ready.read() or b"{}")
    if "pid" not in answer:
        last = log.read_text(errors="replace").strip().rpartition("\n")[2]
        raise BackendError(
            answer.get("message") or f"the daemon ended before it answered: {last}", hint=answer.get("hint")
        )
    return PrivateDaemon(Client(socket), own, process, log)


@contextlib.contextmanager
def _guard(tag: str, folder: Path) -> Iterator[None]:
    """At the end of the block, or of this process, kill what has `tag` in its environment, and remove `folder`.

    A forked process waits for that: only one that is not killed with us can do it after SIGKILL.
    """
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.close(write_end)
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            os.read(read_end, 1)  # returns when nobody holds the other end
            kill_leftovers((), {TAG_VARIABLE: tag}, timeout_s=KILL_TIMEOUT_S)
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)
    os.close(read_end)
    try:
        yield
    finally:
        os.close(write_end)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
