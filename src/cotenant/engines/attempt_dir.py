"""The folder of an attempt: what the engine tells the runner there, and what the runner tells back.

The files are listed in `runner/__init__.py`; the runner is a separate program, so both sides write their half.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.job import AttemptExit, OomEvidence, ProcessId
from cotenant.core.ports import AttemptRef

RESULT_KEYS = {"reason", "exit_code", "signal", "detail", "oom", "ended_at_s"}


class AttemptDir:
    """Reads and writes the files of one attempt."""

    def __init__(self, root: Path, ref: AttemptRef) -> None:
        self.ref = ref
        self.path = root / str(ref.job_id) / str(ref.attempt)
        self._place = str(self.path)  # for what is done many times a second: pathlib's own work costs as much

    @property
    def claim_path(self) -> Path:
        """Exists once somebody, a runner or `void`, has decided whether this attempt runs."""
        return self.path / "claim"

    @property
    def stdout_path(self) -> Path:
        """Where output goes unless the spec names a file."""
        return self.path / "stdout.log"

    @property
    def stderr_path(self) -> Path:
        """Where errors go unless the spec names a file."""
        return self.path / "stderr.log"

    def env_tag(self) -> Mapping[str, str]:
        """Environment that every process of this attempt carries, and no other."""
        return {"COTENANT_ATTEMPT_DIR": str(self.path)}

    def write(self, name: str, value: Mapping[str, Any], *, durable: bool = True) -> None:
        """Put a JSON file there, complete or not at all.

        Raises:
            OSError: it cannot be written.
        """
        data = json.dumps(value).encode()
        draft = f"{self._place}/.{name}.{os.getpid()}"  # a file has one writer in the daemon
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
                if durable:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(draft, f"{self._place}/{name}")  # noqa: PTH105
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file from there; None if it is absent or not ours."""
        try:
            with open(f"{self._place}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                value = json.loads(file.read())
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None

    def tombstone(self) -> bool:
        """Make sure that this attempt never starts; False if a runner was first.

        Raises:
            OSError: the claim cannot be written.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(prefix=".claim.", dir=self.path)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump({"by": "engine"}, file)
            os.link(draft, self.claim_path)
        except FileExistsError:
            return self.runner() is None
        finally:
            Path(draft).unlink(missing_ok=True)
        return True

    def runner(self) -> ProcessId | None:
        """The runner that claimed this attempt, alive or not."""
        claim = self.read("claim")
        return _process(claim["process"]) if claim and claim.get("by") == "runner" else None

    def recorded_processes(self) -> tuple[ProcessId, ...]:
        """The runner and the job's first process, as far as they were written down; alive or not."""
        found = [self.runner()]
        for name in (".result.reserved", "started.json"):  # the second was the place in version 0.1
            told = (self.read(name) or {}).get("job")
            with contextlib.suppress(KeyError, TypeError, ValueError):  # damaged: those that carry the mark are found
                found.append(_process(told) if told else None)
        return tuple(each for each in found if each is not None)

    def started(self, cause: str) -> AttemptStarted | None:
        """The event, if the job's program has been started."""
        told = self.read("started.json")
        result = self._result()
        if told is None or (result is not None and result["reason"] == "not-started"):
            return None
        return AttemptStarted(
            at_s=float(told["started_at_s"]),
            cause=cause,
            job_id=self.ref.job_id,
            attempt=self.ref.attempt,
            process=_process(told["runner"]),
        )

    def exited(self, cause: str) -> AttemptExited | None:
        """The event, if a result has been written."""
        result = self._result()
        if result is None:
            return None
        evidence = {key: value for key, value in result["oom"].items() if key in OomEvidence.__dataclass_fields__}
        ended = AttemptExit(
            exit_code=result["exit_code"],
            signal=result["signal"],
            reason=result["reason"],
            detail=result["detail"],
            oom=OomEvidence(**evidence),
        )
        return self.exit_event(ended, float(result["ended_at_s"]), cause)

    def _result(self) -> dict[str, Any] | None:
        """What the runner has written of the end; None if there is nothing, or only a part: a disk that failed."""
        result = self.read("result.json")
        return (
            result if result is not None and result.keys() >= RESULT_KEYS and isinstance(result["oom"], dict) else None
        )

    def exit_event(self, ended: AttemptExit, at_s: float, cause: str) -> AttemptExited:
        """`ended` as the event of this attempt."""
        ref = self.ref
        return AttemptExited(
            at_s=at_s, cause=cause, job_id=ref.job_id, attempt=ref.attempt, exit=ended, peak_observed_bytes={}
        )

    def write_result(self, ended: AttemptExit, at_s: float) -> None:
        """Record an end that no runner could record.

        Raises:
            OSError: it cannot be written.
        """
        result = {"exit_code": ended.exit_code, "signal": ended.signal, "reason": ended.reason, "detail": ended.detail}
        self.write("result.json", {**result, "oom": {}, "ended_at_s": at_s})


def _process(told: Mapping[str, Any]) -> ProcessId:
    return ProcessId(pid=int(told["pid"]), start_ticks=int(told["start_ticks"]), boot_id=str(told["boot_id"]))
