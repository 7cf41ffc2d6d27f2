"""Client of the fork server: traces scripts without the start of an interpreter and the import of torch for each."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from cotenant.tracing.process.serialization import RENEWED
from cotenant.tracing.process.work_clock import WorkLimit

_MAX_MESSAGE_BYTES = 4096
_START_S = 30.0
_POLL_S = 0.5  # between looks at the limit of a script
_STARTUP_VARIABLES = (
    "PYTHON", "LD_", "TORCH", "PYTORCH", "CUDA", "CUBLAS", "CUDNN", "NCCL", "NVIDIA", "KMP_", "KINETO", "MKL_",
    "OPENBLAS_", "GOMP_", "ATEN_", "CONDA", "VIRTUAL_ENV", "LANG", "LC_", "MALLOC", "HOME",
)  # fmt: skip
"""Prefixes of variables that an interpreter or torch reads while it is loaded."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ScriptTimeout(Exception):
    """The script did not end within its timeout."""


class ForkServerClient:
    """Owns one fork server, for one interpreter and one environment at a time; a request for another replaces it.

    No method fails because of the server: where there is none, `run` returns None and the caller starts a process.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._key = ""
        self._unfit: set[str] = set()
        self._watched_files: list[tuple[str, int]] = []

    def __enter__(self) -> ForkServerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process ID of the server; None while there is none."""
        return None if self._process is None else self._process.pid

    def run(
        self, command: list[str], fork_request: Path, *, workdir: str, env: Mapping[str, str], timeout_s: float
    ) -> int | None:
        """Run a script in a fork; its exit code, negative for a signal. None: the script was not started.

        `command`: the interpreter and `bootstrap.py`. `fork_request`: a file as of `tracing.process.forkserver`.

        Raises:
            ScriptTimeout: the script was killed after `timeout_s`.
        """
        key = _startup_key(command, workdir, env)
        if key in self._unfit or not self._is_ready(key, command, env):
            return None
        assert self._link is not None
        began_s = time.monotonic()
        has_started = False
        try:
            self._link.send(os.fsencode(fork_request))
            self._link.settimeout(_START_S)
            pid = int(self._receive()["pid"])
            has_started = True
            limit = WorkLimit(began_s, timeout_s, pid, fork_request.with_name(RENEWED))
            self._link.settimeout(_POLL_S)
            while not limit.is_over():
                with contextlib.suppress(TimeoutError):
                    return int(self._receive()["code"])
        except TimeoutError:  # of the start
            pass
        except (OSError, ValueError, LookupError):  # the script may be the cause: it is not run twice
            self.close()
            return -signal.SIGKILL if has_started else None
        self.close()
        raise ScriptTimeout

    def close(self) -> None:
        """Kill the server, with the script that it may be running."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._link = self._process = None
        self._key = ""

    def _is_ready(self, key: str, command: list[str], env: Mapping[str, str]) -> bool:
        unchanged = all(_mtime_ns(path) == mtime_ns for path, mtime_ns in self._watched_files)
        if self._link is not None and self._key == key and unchanged:
            return True
        self.close()
        # SEQPACKET keeps the boundaries of messages (unix(7)): one `recv` is one message.
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*command, "--serve", str(theirs.fileno())],
                    cwd="/",
                    # OpenMP and OpenBLAS start threads at import, which a fork does not have; a driver that is open
                    # does not survive it.
                    env={**env, **_ONE_THREAD, "CUDA_VISIBLE_DEVICES": ""},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                return False
        self._link, self._key = ours, key
        ours.settimeout(_START_S)
        try:
            self._watched_files = [(path, mtime_ns) for path, mtime_ns in self._receive()["ready"]]
        except (OSError, ValueError, LookupError):
            self._unfit.add(key)
            self.close()
            return False
        return True

    def _receive(self) -> dict[str, Any]:
        assert self._link is not None
        return dict(json.loads(self._link.recv(_MAX_MESSAGE_BYTES)))


def _startup_key(command: list[str], workdir: str, env: Mapping[str, str]) -> str:
    """Digest of everything that is fixed once an interpreter has loaded torch."""
    decides = {
        name: value for name, value in env.items() if name.startswith(_STARTUP_VARIABLES) and name not in _ONE_THREAD
    }
    folder = workdir if "PYTHONPATH" in env else ""  # which may have relative paths
    interpreter = [_mtime_ns(command[0]), _mtime_ns(str(Path(command[0]).parent.parent / "pyvenv.cfg"))]
    text = json.dumps([command, interpreter, folder, sorted(decides.items())])
    return hashlib.sha256(text.encode()).hexdigest()


def _mtime_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - called often, with a string
    except OSError:
        return 0
