"""Runs scripts on the null GPU in forks of one process, which has torch and the libraries of most scripts loaded.

A run in a process of its own spends most of its time on imports. The forks differ from it in nothing that the null GPU
counts as long as no library is initialized before the fork: the process starts without the description of a GPU, so
that our driver library ends it if anything reads the properties of the device while it imports.

Run as a program, this file is that process. It reads requests from standard input, one JSON line each, and writes
the ID of the fork, and then its exit code.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu import NullGpuError, NullGpuLibraries, TrainingRun, environment_of, read_answer
from cotenant.nullgpu import child as null_gpu_child

PRELOADED = ("torch", "torchvision", "timm", "transformers", "transformers.modeling_utils")
"""What is not installed is left out."""
_START_S, _TIMEOUT_S = 300.0, 600.0
_GPU = "COTENANT_NULL_GPU"
_LOG_TAIL = 2000


class NullGpuForks:
    """Owns the process that forks; it starts with the first script and ends with `close`."""

    def __init__(self, libraries: NullGpuLibraries, env: Mapping[str, str]) -> None:
        self._libraries, self._env = libraries, env
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that forks, the leader of its session; None while there is none."""
        return None if self._process is None else self._process.pid

    def run(
        self,
        gpu: str,
        command: Sequence[str],
        *,
        steps: int,
        env: Mapping[str, str],
        workdir: Path,
        total_bytes: int | None = None,
        prelude: str = "",
    ) -> TrainingRun:
        """As `cotenant.nullgpu.run_script` with its history.

        Raises:
            NullGpuError: the fork crashed or did not end in ten minutes, or there is no process to fork.
        """
        process = self._started()
        with tempfile.TemporaryDirectory(prefix="cotenant-null-gpu-") as folder:
            answer, log = Path(folder) / "answer.json", Path(folder) / "log.txt"
            request = {
                "request": {
                    "answer": str(answer), "command": list(command), "steps": steps, "record": True, "prelude": prelude,
                },
                "env": {**env, **environment_of(self._libraries, gpu_spec(gpu), env=env, total_bytes=total_bytes)},
                "log": str(log),
                "workdir": str(workdir),
            }  # fmt: skip
            assert process.stdin is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            pid = self._line(_START_S)
            try:
                how = f"ended with code {self._line(_TIMEOUT_S)}"
            except TimeoutError:
                how = f"did not end within {_TIMEOUT_S:g} s"
                self.close()
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)  # what the script started, and the script after a time-out
            if not answer.exists():
                last_words = log.read_text(errors="replace")[-_LOG_TAIL:].strip() if log.exists() else ""
                raise NullGpuError(f"the script on the null GPU {how}: {last_words}")
            return read_answer(answer)

    def close(self) -> None:
        """End the process, if it was started."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            env = {**self._env, **environment_of(self._libraries, gpu_spec("A100-40GB"), env=self._env)}
            del env[_GPU]
            self._process = subprocess.Popen(
                [self._libraries.wheels.python, __file__],
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self._line(_START_S)
        return self._process

    def _line(self, timeout_s: float) -> int:
        """The next number that the process writes."""
        assert self._process is not None
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], timeout_s)[0]:
            raise TimeoutError
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._process = None
            raise NullGpuError(f"the process that forks for the null GPU ended with code {code}")
        return int(line)


def serve() -> None:
    """Load the libraries, and fork for each request until standard input ends."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    print(os.getpid(), flush=True)
    # Not the iteration of the file, which reads ahead: a fork must not have the lines behind its own.
    while line := sys.stdin.readline():
        pid = os.fork()
        if pid == 0:
            _run(json.loads(line))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run(message: dict[str, Any]) -> NoReturn:
    os.setsid()
    log = os.open(message["log"], os.O_WRONLY | os.O_CREAT, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(number, target)
    os.environ.clear()
    os.environ.update(message["env"])
    os.chdir(message["workdir"])
    null_gpu_child.main(message["request"])
    os._exit(1)


if __name__ == "__main__":
    serve()
