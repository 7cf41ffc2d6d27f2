"""The directory of an attempt: the engine's orders to the runner, and the runner's reports.

`runner/__init__.py` lists the files. The runner is a separate program, so each side has its own half of the code.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard, cast, get_args

from cotenant.core.errors import BackendError, DiskFullError
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.job import AttemptExit, ExitReason, OomEvidence, ProcessId
from cotenant.core.ports import AttemptRef
from cotenant.osutil import atomic, procfs

MAX_DETAIL_CHARS = 4096
MAX_BYTES = 2**50
"""More memory than a GPU has."""
MAX_TIME_S = 1e11
START_TIMEOUT_S = 30.0
"""A runner gets from its claim to the start of the job in milliseconds; one that takes this long hangs."""


class AttemptDir:
    """Reads and writes the files of one attempt, in `<root>/<job>/<attempt>`.

    Every launch comes by here, and joining paths by `pathlib` would cost more than making the files.

    Attributes:
        text: its path.
    """

    def __init__(self, root: Path | str, ref: AttemptRef) -> None:
        self.ref = ref
        self.text = f"{root}/{ref.job_id}/{ref.attempt}"

    @property
    def path(self) -> Path:
        """Its path."""
        return Path(self.text)

    def create(self) -> bool:
        """Create the directory; False if it exists.

        Raises:
            OSError: it cannot be created.
        """
        with contextlib.suppress(FileExistsError):
            os.makedirs(self.text.rpartition("/")[0], mode=0o700)  # noqa: PTH103
        try:
            os.mkdir(self.text, 0o700)  # noqa: PTH102
        except FileExistsError:
            return False
        return True

    @property
    def claim_path(self) -> Path:
        """Exists once a runner or `tombstone` has decided whether this attempt runs."""
        return self.path / "claim"

    @property
    def stdout_path(self) -> str:
        """Where standard output goes unless the spec names a file."""
        return f"{self.text}/stdout.log"

    @property
    def stderr_path(self) -> str:
        """Where standard error goes unless the spec names a file."""
        return f"{self.text}/stderr.log"

    def env_tag(self) -> Mapping[str, str]:
        """Environment that every process of this attempt inherits, and no other process has."""
        return {"COTENANT_ATTEMPT_DIR": self.text}

    def write(self, name: str, value: Mapping[str, Any], *, durable: bool = True) -> None:
        """Write a JSON file, complete or not at all.

        Raises:
            OSError: it cannot be written.
        """
        atomic.write_bytes(f"{self.text}/{name}", json.dumps(value).encode(), durable=durable)

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON object from a file; None if the file is absent or holds something else."""
        try:
            value = json.loads(atomic.read_bytes(f"{self.text}/{name}"))
        except (OSError, ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None

    def tombstone(self) -> bool:
        """Claim the attempt, so that no runner can start it any more; False if a runner claimed it first.

        Raises:
            OSError: the claim cannot be written.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return atomic.create_once(self.claim_path, json.dumps({"by": "engine"}).encode()) or self.runner() is None

    def runner(self) -> ProcessId | None:
        """The runner that claimed this attempt, alive or not; None if none did."""
        claim = self.read("claim")
        return process_id_of(claim.get("process")) if claim and claim.get("by") == "runner" else None

    def recorded_processes(self) -> tuple[ProcessId, ...]:
        """The runner and the job's first process, as far as they were recorded; alive or not."""
        processes = [self.runner()]
        for name in (".result.reserved", "started.json"):  # the runner of cotenant 0.1 recorded it in the second
            # Where it is damaged, `env_tag` finds the processes, too.
            processes.append(process_id_of((self.read(name) or {}).get("job")))
        return tuple(process for process in processes if process is not None)

    def started(self, cause: str) -> AttemptStarted | None:
        """The event, if the job's program has been started."""
        start = self.read("started.json")
        ended = self.exited(cause)
        if start is None or (ended is not None and ended.exit.reason in ("not-started", "never-ran")):
            return None
        at_s, process = start.get("started_at_s"), process_id_of(start.get("runner"))
        if not _is_time(at_s) or process is None:
            return None
        return AttemptStarted(
            at_s=float(at_s), cause=cause, job_id=self.ref.job_id, attempt=self.ref.attempt, process=process
        )

    def exited(self, cause: str) -> AttemptExited | None:
        """The event, if a result has been written; a partial one, as after a disk failure, or a forged one is none."""
        result = self.read("result.json")
        return None if result is None else self.exited_by(result, cause)

    def exited_by(self, result: Mapping[str, Any], cause: str) -> AttemptExited | None:
        """The event by a result, from wherever it came; None if a value in it is missing or out of range."""
        if not _is_time(result.get("ended_at_s")):
            return None
        attempt_exit = _attempt_exit(result)
        return None if attempt_exit is None else self.exit_event(attempt_exit, float(result["ended_at_s"]), cause)

    def exit_event(self, attempt_exit: AttemptExit, at_s: float, cause: str) -> AttemptExited:
        """`attempt_exit` as the event of this attempt."""
        ref = self.ref
        return AttemptExited(
            at_s=at_s, cause=cause, job_id=ref.job_id, attempt=ref.attempt, exit=attempt_exit, peak_observed_bytes={}
        )

    def write_result(self, attempt_exit: AttemptExit, at_s: float) -> None:
        """Record an end that no runner could record.

        Raises:
            OSError: it cannot be written.
        """
        result = {name: getattr(attempt_exit, name) for name in ("exit_code", "signal", "reason", "detail")}
        self.write("result.json", {**result, "oom": {}, "ended_at_s": at_s})

    def await_start(self, runner: ProcessId) -> bool:
        """Wait until `runner` has started the job, milliseconds after its claim; False if it ends instead."""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while procfs.is_alive(runner):
            if self.read("started.json") is not None:
                return True
            if time.monotonic() > deadline_s:
                procfs.send_signal(runner, signal.SIGKILL)
                return False
            time.sleep(0.002)
        return False


def launch_error(message: str, error: OSError) -> BackendError:
    """Why an attempt cannot be launched."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (DiskFullError if is_full else BackendError)(f"{message}: {error.strerror}")


def _attempt_exit(result: Mapping[str, Any]) -> AttemptExit | None:
    """The exit in a runner's result; None if a value is missing or out of range.

    The daemon of one user keeps the folder where that user's jobs can write.
    """
    reason, detail, oom = result.get("reason"), result.get("detail"), result.get("oom")
    code, number = result.get("exit_code", ""), result.get("signal", "")
    if reason not in get_args(ExitReason) or not isinstance(detail, str) or not isinstance(oom, dict):
        return None
    if not (code is None or _is_int(code, 255)) or not (number is None or _is_int(number, 255)):
        return None
    detail = detail[:MAX_DETAIL_CHARS].encode(errors="replace").decode()  # JSON may hold lone surrogates
    stopping_s, elapsed_s = result.get("stopping_s"), result.get("elapsed_s")
    return AttemptExit(
        exit_code=code,
        signal=number,
        reason=cast("ExitReason", reason),
        detail=detail,
        oom=_oom_evidence(oom),
        stopping_s=float(stopping_s) if _is_time(stopping_s) else None,
        elapsed_s=float(elapsed_s) if _is_time(elapsed_s) else None,
    )


def _oom_evidence(found: Mapping[str, Any]) -> OomEvidence:
    """Evidence that a runner found; what is out of range counts as not found."""
    tried, in_use = found.get("tried_bytes"), found.get("in_use_bytes")
    return OomEvidence(
        exception=found.get("exception") is True,
        message=found.get("message") is True,
        tried_bytes=tried if _is_int(tried, MAX_BYTES) else None,
        in_use_bytes=in_use if _is_int(in_use, MAX_BYTES) else None,
    )


def process_id_of(value: object) -> ProcessId | None:
    """An identity of a process from JSON; None for anything else."""
    if not isinstance(value, dict):
        return None
    pid, start_ticks, boot_id = value.get("pid"), value.get("start_ticks"), value.get("boot_id")
    if not _is_int(pid, 2**22) or not pid or not _is_int(start_ticks, 2**63 - 1):  # 2**22: proc_sys_kernel(5), pid_max
        return None
    if not isinstance(boot_id, str) or len(boot_id) > 64 or not boot_id.isascii():
        return None
    return ProcessId(pid=pid, start_ticks=start_ticks, boot_id=boot_id)


def _is_int(value: object, maximum: int) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= maximum


def _is_time(value: object) -> TypeGuard[float]:
    """Seconds since 1970. `not <=` is also true of NaN, which JSON of Python may hold."""
    return isinstance(value, (int, float)) and 0 <= value <= MAX_TIME_S
