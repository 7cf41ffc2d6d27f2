"""Starts a process that measures itself, watches it, and ends it and all it started."""

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

POLL_S = 0.02
HOLD_FD = "COTENANT_HOLD_FD"
"""Names to the process the pipe that ends when it may go."""

_LOG_TAIL_BYTES = 3000


@dataclass(slots=True, kw_only=True)
class HeldProcessResult:
    """How it went.

    Attributes:
        answer: what the process wrote; None if it wrote nothing.
        pids: its processes when it had answered.
        code: exit code, negative for a signal; None if it was ended by us.
    """

    answer: dict[str, Any] | None
    pids: set[int]
    code: int | None
    elapsed_s: float
    log_tail: str


class HeldProcess:
    """One process that writes `answer`, then holds what it holds until `release`.

    Start it from the main thread: it ends with the thread that started it.

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
        """It has answered and holds, or it has ended."""
        return self.answer_path.exists() or self.process.poll() is not None

    def wait(self, limit_s: float) -> bool:
        """Whether it was ready within `limit_s` of its start."""
        end_s = self._began_s + limit_s
        while not self.is_ready:
            if time.monotonic() >= end_s:
                return False
            time.sleep(POLL_S)
        return True

    def pids(self) -> set[int]:
        """Its processes now."""
        return session_pids(self.process.pid)

    def release(self) -> HeldProcessResult:
        """Let it go, end what is left of it, and tell how it went."""
        pids = self.pids()
        answer = None
        if self.answer_path.exists():
            answer = json.loads(self.answer_path.read_text())
        with suppress(OSError):
            os.close(self._our_end)
        code: int | None = None
        if answer is not None or self.process.poll() is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self.process.wait(10)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        elapsed_s = time.monotonic() - self._began_s
        return HeldProcessResult(answer=answer, pids=pids, code=code, elapsed_s=elapsed_s, log_tail=_tail(self._log))


def session_pids(leader: int) -> set[int]:
    """`leader` and all processes of its session."""
    found = {leader}
    for name in os.listdir("/proc"):  # noqa: PTH208 (as names, in one call; this runs while a GPU waits)
        if name.isdigit():
            with suppress(OSError):
                if os.getsid(int(name)) == leader:
                    found.add(int(name))
    return found


def _tail(path: Path) -> str:
    data = path.read_bytes() if path.exists() else b""
    return data[-_LOG_TAIL_BYTES:].decode(errors="replace")
