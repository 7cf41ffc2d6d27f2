"""A process that measures itself and holds what it measured until it is released; used by measurement campaigns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError
from cotenant.core.units import format_duration
from cotenant.osutil.procfs import session_pids

POLL_S = 0.02
EXIT_TIMEOUT_S = 10.0
"""A process that has answered exits by itself within this time, or is killed."""
HOLD_FD = "COTENANT_HOLD_FD"
"""Variable with the descriptor of a pipe: the process may exit once reading it gives end of file."""

_LOG_TAIL_BYTES = 3000


@dataclass(slots=True, kw_only=True)
class HeldProcessResult:
    """How a held process ended.

    Attributes:
        answer: what the process wrote; None if it wrote nothing.
        pids: its processes when it had answered.
        code: exit code, negative for a signal; None if we killed it.
    """

    answer: dict[str, Any] | None
    pids: set[int]
    code: int | None
    elapsed_s: float
    log_tail: str

    def failure(self, *, in_time: bool, limit_s: float) -> str:
        """Why there is no answer: the time limit, or how the process exited and the last line of its log."""
        if not in_time:
            return f"not done after {format_duration(limit_s)}"
        lines = [line.strip() for line in self.log_tail.splitlines() if line.strip()]
        how = "exited" if self.code is None else f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        return f"{how}; last line: {lines[-1][:200] if lines else 'none'}"


class HeldProcess:
    """One process that writes the JSON file `answer`, then holds its resources until `release`.

    Start it from the main thread: a process with PR_SET_PDEATHSIG ends with the thread that started it (prctl(2)).

    Raises:
        CotenantError: the interpreter cannot be started.
    """

    def __init__(
        self, command: Sequence[str], *, workdir: str, env: Mapping[str, str], log: Path, answer: Path
    ) -> None:
        self.answer_path = answer
        self._log = log
        self._began_s = time.monotonic()
        answer.unlink(missing_ok=True)
        their_end, self._our_end = os.pipe()
        try:
            with log.open("wb") as sink:
                self.process = subprocess.Popen(
                    list(command),
                    cwd=workdir,
                    env={**env, HOLD_FD: str(their_end)},
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=sink,
                    start_new_session=True,
                    pass_fds=(their_end,),
                )
        except OSError as error:
            os.close(self._our_end)
            raise CotenantError(f"cannot start `{command[0]}`: {(error.strerror or str(error)).lower()}") from error
        finally:
            os.close(their_end)

    @property
    def is_ready(self) -> bool:
        """It has answered and holds its resources, or it has ended."""
        return self.answer_path.exists() or self.process.poll() is not None

    def is_overdue(self, limit_s: float) -> bool:
        """Whether more than `limit_s` have passed since its start."""
        return time.monotonic() >= self._began_s + limit_s

    def wait(self, limit_s: float) -> bool:
        """Wait until it is ready, at most `limit_s` from its start; whether it is."""
        while not self.is_ready:
            if self.is_overdue(limit_s):
                return False
            time.sleep(POLL_S)
        return True

    def pids(self) -> set[int]:
        """Its processes now."""
        return session_pids(self.process.pid)

    def release(self) -> HeldProcessResult:
        """Let it exit, and kill what is left of it."""
        pids = self.pids()
        answer = None
        if self.answer_path.exists():
            answer = json.loads(self.answer_path.read_text())
        with suppress(OSError):
            os.close(self._our_end)
        code: int | None = None
        if answer is not None or self.process.poll() is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(EXIT_TIMEOUT_S)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        elapsed_s = time.monotonic() - self._began_s
        return HeldProcessResult(answer=answer, pids=pids, code=code, elapsed_s=elapsed_s, log_tail=_tail(self._log))


def _tail(path: Path) -> str:
    data = path.read_bytes() if path.exists() else b""
    return data[-_LOG_TAIL_BYTES:].decode(errors="replace")
