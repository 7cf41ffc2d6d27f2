"""The directory of an attempt: what the engine tells the runner there, and what the runner reports.

`runner/__init__.py` lists the files. The runner is a separate program, so each side has its own half of the code.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.job import AttemptExit, OomEvidence, ProcessId
from cotenant.core.ports import AttemptRef
from cotenant.osutil import atomic

RESULT_KEYS = {"reason", "exit_code", "signal", "detail", "oom", "ended_at_s"}


class AttemptDir:
    """Reads and writes the files of one attempt, in `<root>/<job>/<attempt>`."""

    def __init__(self, root: Path, ref: AttemptRef) -> None:
        self.ref = ref
        self.path = root / str(ref.job_id) / str(ref.attempt)
        self._text = str(self.path)  # a file is read and written with each launch: pathlib would cost as much as that

    @property
    def claim_path(self) -> Path:
        """Exists once a runner or `tombstone` has decided whether this attempt runs."""
        return self.path / "claim"

    @property
    def stdout_path(self) -> Path:
        """Where standard output goes unless the spec names a file."""
        return self.path / "stdout.log"

    @property
    def stderr_path(self) -> Path:
        """Where standard error goes unless the spec names a file."""
        return self.path / "stderr.log"

    def env_tag(self) -> Mapping[str, str]:
        """Environment that every process of this attempt inherits, and no other process has."""
        return {"COTENANT_ATTEMPT_DIR": self._text}

    def write(self, name: str, value: Mapping[str, Any], *, durable: bool = True) -> None:
        """Write a JSON file, complete or not at all.

        Raises:
            OSError: it cannot be written.
        """
        atomic.write_bytes(f"{self._text}/{name}", json.dumps(value).encode(), durable=durable)

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON object from a file; None if the file is absent or holds something else."""
        try:
            with open(f"{self._text}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                value = json.loads(file.read())
        except (OSError, ValueError):
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
        return _process_id(claim["process"]) if claim and claim.get("by") == "runner" else None

    def recorded_processes(self) -> tuple[ProcessId, ...]:
        """The runner and the job's first process, as far as they were recorded; alive or not."""
        processes = [self.runner()]
        for name in (".result.reserved", "started.json"):  # the runner of cotenant 0.1 recorded it in the second
            recorded = (self.read(name) or {}).get("job")
            with contextlib.suppress(KeyError, TypeError, ValueError):  # damaged: `env_tag` finds the processes too
                processes.append(_process_id(recorded) if recorded else None)
        return tuple(process for process in processes if process is not None)

    def started(self, cause: str) -> AttemptStarted | None:
        """The event, if the job's program has been started."""
        start = self.read("started.json")
        result = self._result()
        if start is None or (result is not None and result["reason"] == "not-started"):
            return None
        return AttemptStarted(
            at_s=float(start["started_at_s"]),
            cause=cause,
            job_id=self.ref.job_id,
            attempt=self.ref.attempt,
            process=_process_id(start["runner"]),
        )

    def exited(self, cause: str) -> AttemptExited | None:
        """The event, if a result has been written."""
        result = self._result()
        if result is None:
            return None
        evidence = {key: value for key, value in result["oom"].items() if key in OomEvidence.__dataclass_fields__}
        attempt_exit = AttemptExit(
            exit_code=result["exit_code"],
            signal=result["signal"],
            reason=result["reason"],
            detail=result["detail"],
            oom=OomEvidence(**evidence),
        )
        return self.exit_event(attempt_exit, float(result["ended_at_s"]), cause)

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

    def _result(self) -> dict[str, Any] | None:
        """The runner's result; None if there is none, or a partial one, as after a disk failure."""
        result = self.read("result.json")
        is_complete = result is not None and result.keys() >= RESULT_KEYS and isinstance(result["oom"], dict)
        return result if is_complete else None


def _process_id(value: Mapping[str, Any]) -> ProcessId:
    return ProcessId(pid=int(value["pid"]), start_ticks=int(value["start_ticks"]), boot_id=str(value["boot_id"]))
