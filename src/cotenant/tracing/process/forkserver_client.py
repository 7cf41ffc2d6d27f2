"""Keeps a tracing process that has torch loaded, so that the next script is traced without the start of another."""

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

_MAX_MESSAGE_BYTES = 4096
_START_S = 30.0
_STARTUP_VARIABLES = (
    *("PYTHON", "LD_", "TORCH", "PYTORCH", "CUDA", "CUBLAS", "CUDNN", "NCCL", "NVIDIA", "KMP_", "KINETO", "MKL_"),
    *("OPENBLAS_", "GOMP_", "ATEN_", "CONDA", "VIRTUAL_ENV", "LANG", "LC_", "MALLOC", "HOME"),
)
"""How names of variables start that an interpreter, or torch, reads while it is loaded."""

_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ScriptTimeout(Exception):
    """The script went on for longer than it may."""


class ForkServerClient:
    """One tracing process, for one interpreter and one set of variables at a time; another takes its place.

    Nothing here fails: where no such process can be had, or it is of no use, the caller starts one as usual.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._key = ""
        self._unfit: set[str] = set()
        self._installed: list[tuple[str, int]] = []

    def __enter__(self) -> ForkServerClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Of the process that waits; None while there is none."""
        return None if self._process is None else self._process.pid

    def run(
        self, command: list[str], errand: Path, *, workdir: str, env: Mapping[str, str], timeout_s: float
    ) -> int | None:
        """Have the errand of `tracing.process.nursery` done; its exit code, negative for a signal.

        `command`: the interpreter and `bootstrap.py`. None: it was not begun.

        Raises:
            ScriptTimeout: it was ended after `timeout_s`.
        """
        key = _startup_key(command, workdir, env)
        if key in self._unfit or not self._is_ready(key, command, env):
            return None
        assert self._link is not None
        deadline_s = time.monotonic() + timeout_s
        begun = False
        try:
            self._link.send(os.fsencode(errand))
            self._link.settimeout(_START_S)
            begun = "pid" in self._hear()
            self._link.settimeout(max(1e-3, deadline_s - time.monotonic()))
            return int(self._hear()["code"])
        except TimeoutError:
            self.close()
            raise ScriptTimeout from None
        except (OSError, ValueError, LookupError):  # a script that has run is not run again: it may have been the cause
            self.close()
            return -signal.SIGKILL if begun else None

    def close(self) -> None:
        """End the process, with the script that it may be running."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._link = self._process = None
        self._key = ""

    def _is_ready(self, key: str, command: list[str], env: Mapping[str, str]) -> bool:
        as_before = all(_mtime_ns(path) == stamp for path, stamp in self._installed)
        if self._link is not None and self._key == key and as_before:
            return True
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*command, "--serve", str(theirs.fileno())],
                    cwd="/",
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
            self._installed = [(path, stamp) for path, stamp in self._hear()["ready"]]
        except (OSError, ValueError, LookupError):
            self._unfit.add(key)
            self.close()
            return False
        return True

    def _hear(self) -> dict[str, Any]:
        assert self._link is not None
        return dict(json.loads(self._link.recv(_MAX_MESSAGE_BYTES)))


def _startup_key(command: list[str], workdir: str, env: Mapping[str, str]) -> str:
    """Of all that a process is loaded with, and could not change afterwards."""
    decides = {
        name: value for name, value in env.items() if name.startswith(_STARTUP_VARIABLES) and name not in _ONE_THREAD
    }
    folder = workdir if "PYTHONPATH" in env else ""  # it may name folders relative to that
    interpreter = [_mtime_ns(command[0]), _mtime_ns(str(Path(command[0]).parent.parent / "pyvenv.cfg"))]
    told = json.dumps([command, interpreter, folder, sorted(decides.items())])
    return hashlib.sha256(told.encode()).hexdigest()


def _mtime_ns(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - a text is all there is
    except OSError:
        return 0
