"""The result table of a campaign: one row per run, written when the run ends."""

from __future__ import annotations

import csv
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError
from cotenant.core.gpu import GpuSample
from cotenant.gpus.gpu_sampler import MeasuredUsage
from cotenant.measurement.job_list import MeasureJob

COLUMNS: Mapping[str, str] = {
    "job": "name in the job list",
    "repeat": "1 for the first run of the job",
    "outcome": "ok, oom, error, no-step, no-cuda, timeout or crashed; other outcomes have the figures reached",
    "message": "message of the script, if the outcome is not ok",
    "steps": "optimizer steps run",
    "peak_allocated_bytes": "torch.cuda.max_memory_allocated over the whole run",
    "peak_reserved_bytes": "torch.cuda.max_memory_reserved",
    "peak_active_bytes": "active_bytes.all.peak of torch.cuda.memory_stats",
    "peak_requested_bytes": "requested_bytes.all.peak: before rounding",
    "load_peak_bytes": "peak of allocated bytes before the first forward pass on the GPU",
    "forward_peak_bytes": "the same, in forward passes and everything outside of other phases",
    "backward_peak_bytes": "the same, in backward passes",
    "step_peak_bytes": "the same, in optimizer steps",
    "end_allocated_bytes": "allocated when the run was stopped",
    "end_reserved_bytes": "reserved when the run was stopped",
    "retries": "how often the allocator freed its cache to retry",
    "peak_process_bytes": "NVML, the job's processes, sampled every 50 ms; empty if the driver lists none of them",
    "end_process_bytes": "the same, at the end of the run, before anything was freed",
    "peak_device_bytes": "NVML, all of the GPU above what was in use before, sampled",
    "end_device_bytes": "the same, when the run was stopped",
    "context_bytes": "outside the allocator at the end: process (else device) bytes less reserved bytes",
    "step_s": "median time between ends of optimizer steps, by CUDA events, after warm-up",
    "steps_timed": "steps in that median",
    "smact": "NVML GPM SM activity over the timed steps, 0..1",
    "power_w": "mean power over the timed steps",
    "energy_j": "energy over the timed steps",
    "sm_clock_mhz": "median clock of the SMs over the timed steps",
    "elapsed_s": "wall-clock time of the process",
    "history_events": "events in history.json.gz; empty if none was recorded",
    "gpu": "name by torch",
    "driver": "version of the NVIDIA driver",
    "torch": "version",
    "cuda": "version torch was built for",
    "cudnn": "version as torch gives it",
    "transformers": "version, if the script imported it",
    "timm": "version, if the script imported it",
    "torchvision": "version, if the script imported it",
    "at": "when it ended, UTC",
    "tags": "of the job, separated by spaces",
    "command": "script and arguments",
}
PHASES = ("load", "forward", "backward", "step")


def row_of(
    job: MeasureJob, repeat: int, record: Mapping[str, Any], usage: MeasuredUsage, *, driver: str | None
) -> dict[str, object]:
    """The row of one run; `record` is its JSON record."""
    versions = record.get("versions", {})
    phases = record.get("phases", {})
    times = step_times_s(record)
    held = usage.end_process_bytes if usage.end_process_bytes is not None else usage.end_device_bytes
    reserved = record.get("reserved_bytes")
    row: dict[str, object] = {
        **{name: record.get(name) for name in COLUMNS if name in record},
        **{name: getattr(usage, name) for name in COLUMNS if hasattr(usage, name)},
        **{f"{phase}_peak_bytes": phases.get(phase, {}).get("allocated") for phase in PHASES},
        **{name: versions.get(name) for name in COLUMNS if name in versions},
        "job": job.name,
        "repeat": repeat,
        "end_allocated_bytes": record.get("allocated_bytes"),
        "end_reserved_bytes": reserved,
        "context_bytes": None if held is None or reserved is None else held - reserved,
        "step_s": round(statistics.median(times), 6) if times else None,
        "steps_timed": len(times),
        "driver": driver,
        "tags": " ".join(job.tags),
    }
    return {name: row.get(name) for name in COLUMNS}


def step_times_s(record: Mapping[str, Any]) -> list[float]:
    """Seconds between the ends of optimizer steps after the warm-up."""
    ended = record.get("step_ended_s") or []
    first = max(0, int(record.get("warmup_steps", 0)) - 1)
    return [after - before for before, after in zip(ended[first:], ended[first + 1 :], strict=False)]


class ResultTable:
    """A CSV file to which rows are appended; `add` returns after fsync."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self._columns = list(columns)
        if not path.exists() or not path.stat().st_size:
            self._append(self._columns)
            return
        with path.open(newline="", encoding="utf-8") as file:
            found = next(csv.reader(file), [])
        if found != self._columns:
            raise CotenantError(
                f"`{path}` has other columns than this version of cotenant writes",
                hint="choose another folder with `--out`",
            )
        self._truncate_incomplete_line()

    def add(self, row: Mapping[str, object]) -> None:
        """Append one row."""
        self._append([row.get(name) for name in self._columns])

    def rows(self) -> list[dict[str, str]]:
        """All rows, as strings."""
        return read_rows(self.path)

    def _append(self, values: Sequence[object]) -> None:
        try:
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerow(["" if value is None else value for value in values])
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise CotenantError(
                f"cannot write `{self.path}`: {reason}", hint="make room, then continue with `--resume`"
            ) from error

    def _truncate_incomplete_line(self) -> None:
        """Remove a last line that a crash left incomplete."""
        data = self.path.read_bytes()
        if not data.endswith(b"\n"):
            self.path.write_bytes(data[: data.rfind(b"\n") + 1])


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table, as strings."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


SAMPLE_COLUMNS = (
    "at_s", "used_bytes", "utilization", "gract", "smact", "smocc", "drama", "tensor", "fp32", "pcie_tx_bytes_s",
    "pcie_rx_bytes_s", "power_w", "energy_j", "sm_clock_mhz",
)  # fmt: skip
"""Fields of `core.gpu.GpuSample`, which explains them."""


def write_samples(path: Path, samples: Iterable[GpuSample]) -> None:
    """Write a run's samples of the GPU over time, `at_s` in seconds since the epoch."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(SAMPLE_COLUMNS)
        for sample in samples:
            values = (getattr(sample, name) for name in SAMPLE_COLUMNS)
            writer.writerow(["" if value is None else value for value in values])
