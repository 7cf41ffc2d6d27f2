"""The log of runs: one line of JSON each, on disk before the next run starts."""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from cotenant.core.codec import CodecError, decode, encode
from cotenant.core.errors import DatasetError, UsageError
from cotenant.learn.datasets.dataset_row import Status
from cotenant.osutil.locks import try_lock

FILE = "runs.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRecord:
    """One run of a configuration, trained or traced. Fields that do not apply or were not measured are None.

    Attributes:
        source: `measured` or `traced`.
        at: when it ended, UTC.
        gpu: its name; of a traced run the name in `cotenant.gpu_specs`.
        layers: of the network, as `datasets.dataset_row.layers_to_text` writes them.
        peak_bytes: peak GPU memory of the process, context included; of a traced run that does not fit, the peak
            with unlimited memory.
        smact, smocc, drama: means over the timed steps, ratios; power_w: mean over the timed steps.
        step_s: median time of a step; elapsed_s: wall-clock time of the run.
        cpu_s: CPU time of the process, user and system; host_peak_bytes: its peak resident memory.
    """

    config_id: str
    status: Status
    source: str
    at: str
    gpu: str
    message: str = ""
    layers: str = ""
    peak_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    context_bytes: int | None = None
    capacity_bytes: int | None = None
    smact: float | None = None
    smocc: float | None = None
    drama: float | None = None
    power_w: float | None = None
    steps: int | None = None
    step_s: float | None = None
    elapsed_s: float | None = None
    cpu_s: float | None = None
    host_peak_bytes: int | None = None
    torch: str = ""
    driver: str = ""


class RunLog:
    """The runs of a folder; a `with` block holds its lock.

    Raises:
        UsageError: it has runs already and `resume` is not set, or another process writes there.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.path = folder / FILE
        if self.path.exists() and not resume:
            raise UsageError(
                f"`{self.path}` is there already", hint="continue with `--resume`, or choose another folder"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab")
        if not try_lock(self._file.fileno()):
            self._file.close()
            raise UsageError(f"another process writes to `{self.path}`", hint="choose another folder")
        self._mend()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, run: LabelRecord) -> None:
        """Append a run; it is on disk when this returns."""
        self._file.write(json.dumps(encode(run), separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _mend(self) -> None:
        """Truncate a last line that a crash left incomplete."""
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):
            self._file.truncate(data.rfind(b"\n") + 1)


def utc_now() -> str:
    """The current date and time in UTC, as written to records."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_records(path: Path) -> tuple[LabelRecord, ...]:
    """The runs of a file or folder, oldest first; an incomplete last line is ignored.

    Raises:
        DatasetError: a line is not a record; UsageError: there is no such file.
    """
    file = path / FILE if path.is_dir() else path
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(
            f"cannot read `{file}`: {(error.strerror or str(error)).lower()}", hint="make it with `cotenant learn run`"
        ) from error
    return tuple(_run(line, file, number) for number, line in enumerate(lines[:-1], start=1))


def _run(line: bytes, file: Path, number: int) -> LabelRecord:
    try:
        return decode(LabelRecord, json.loads(line))
    except (ValueError, CodecError) as error:
        raise DatasetError(f"{file}:{number}: no run: {error}") from error
