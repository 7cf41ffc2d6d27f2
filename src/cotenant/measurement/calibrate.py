"""Measures the memory of a process outside of the allocator, and writes a GPU specification.

Each step is a new process that uses more libraries than the step before. Its context memory is the memory that the
driver reports, less the reserved bytes of its allocator.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError
from cotenant.core.units import MiB
from cotenant.engines.held_process import HeldProcess
from cotenant.gpus.gpu_sampler import driver_version
from cotenant.measurement.campaign import CampaignSetup, open_table, utc_now

CHILD = Path(__file__).with_name("calibrate_child.py")
STEPS = ("bare", "cublas", "cublaslt", "cudnn", "many")
LIMIT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationReading:
    """The result of one step.

    Attributes:
        outside_bytes: reported by the driver, less the reserved bytes; None if the step failed.
        by: `process` or `device`: what the driver counted.
        answer: output of the process; `problem`: why there is none.
    """

    step: str
    outside_bytes: int | None
    by: str
    answer: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


COLUMNS: Mapping[str, str] = {
    "step": "bare, cublas, cublaslt, cudnn or many",
    "repeat": "1 for the first calibration in this folder",
    "outcome": "ok or failed",
    "message": "why it failed",
    "outside_bytes": "bytes that the driver reported, less reserved bytes",
    "by": "process or device: what the driver counted",
    "reserved_bytes": "of the allocator",
    "handle_bytes": "workspace of cuBLAS",
    "lt_bytes": "workspace of cuBLASLt",
    "gpu": "name by torch",
    "driver": "version of the NVIDIA driver",
    "torch": "version",
    "cuda": "version torch was built for",
    "cudnn": "version",
    "at": "when it ended, UTC",
}


def calibrate(setup: CampaignSetup) -> list[CalibrationReading]:
    """Run all steps; a failed step does not stop the others. Rows, logs and answers stay in `setup.out`.

    Raises:
        UsageError: another process measures into the folder.
        CotenantError: the folder cannot be written.
    """
    driver = driver_version()
    readings = []
    with open_table(setup.out / "calibrate.csv", COLUMNS, resume=True) as table:
        repeat = 1 + max((int(row["repeat"]) for row in table.rows()), default=0)
        for step in STEPS:
            reading = _read(step, setup)
            table.add(_row(reading, repeat, driver))
            readings.append(reading)
    return readings


def _row(reading: CalibrationReading, repeat: int, driver: str | None) -> dict[str, object]:
    return {
        **{name: reading.answer.get(name) for name in COLUMNS},
        "step": reading.step,
        "repeat": repeat,
        "outcome": "failed" if reading.outside_bytes is None else "ok",
        "message": reading.problem,
        "outside_bytes": reading.outside_bytes,
        "by": reading.by,
        "driver": driver,
        "at": utc_now(),
    }


def _read(step: str, setup: CampaignSetup) -> CalibrationReading:
    answer = (setup.out / f"calibrate-{step}.json").resolve()
    with setup.watch or nullcontext():
        run = HeldProcess(
            [setup.python, str(CHILD), step, str(answer)],
            workdir=str(setup.out),
            env=setup.plain_env(),
            log=setup.out / f"calibrate-{step}.log",
            answer=answer,
        )
        try:
            in_time = run.wait(LIMIT_S)
            end = setup.watch.read() if setup.watch is not None and in_time else None
        finally:
            ended = run.release()
    if ended.answer is None:
        problem = ended.failure(in_time=in_time, limit_s=LIMIT_S)
        return CalibrationReading(step=step, outside_bytes=None, by="", problem=problem)
    usage = None if setup.watch is None else setup.watch.usage(ended.pids, end, None)
    reserved = int(ended.answer["reserved_bytes"])
    held, by = (None, "") if usage is None else (usage.end_process_bytes, "process")
    if usage is not None and held is None:
        held, by = usage.end_device_bytes, "device"
    if held is None:
        # Without NVML, use what CUDA counts as used: other processes and the driver's own memory are included.
        held, by = int(ended.answer["device_total_bytes"]) - int(ended.answer["device_free_bytes"]), "device"
    return CalibrationReading(step=step, outside_bytes=held - reserved, by=by, answer=ended.answer)


def profile_text(
    readings: Sequence[CalibrationReading], *, nvml_total_bytes: int | None, now: str | None = None
) -> str:
    """The device profile, in the format of `gpu_specs/data`; figures that were not measured are left out.

    Raises:
        CotenantError: the step `bare` failed.
    """
    read = {reading.step: reading for reading in readings if reading.outside_bytes is not None}
    if "bare" not in read:
        problem = next((reading.problem for reading in readings if reading.step == "bare"), "")
        raise CotenantError(f"no process could use the GPU: {problem or 'no reading'}")
    facts = read["bare"].answer
    made = now or datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    stack = (
        f"torch {facts['torch']}, CUDA {facts['cuda']}, cuDNN {facts['cudnn']}, driver {driver_version() or 'unknown'}"
    )
    by_torch = f"torch.cuda.get_device_properties, {made}, {stack}"
    total = nvml_total_bytes if nvml_total_bytes is not None else facts["torch_total_bytes"]
    lines = [
        f"name = {json.dumps(_profile_name(facts['gpu'], total))}",
        "aliases = []",
        f"nvml_names = {json.dumps([facts['gpu']])}",
        *_figure("memory_total_bytes", total, f"NVML, {made}" if nvml_total_bytes is not None else by_torch),
        *_figure("torch_total_bytes", facts["torch_total_bytes"], by_torch),
        *_figure("sm_count", facts["sm_count"], by_torch),
        *_figure("compute_capability", list(facts["capability"]), by_torch),
    ]
    handle = read["cublas"].answer.get("handle_bytes") if "cublas" in read else None
    if handle is None:
        handle, source = (33_554_432 if facts["capability"][0] == 9 else 8_519_680), "not observed; PyTorch's default"
    else:
        source = f"allocation of the first matrix product, by the allocator's history, {made}, {stack}"
    lines += _figure("cublas_workspace_bytes", handle, source)
    return "\n".join([*lines, *_context(read, made, stack)]) + "\n"


def report(readings: Sequence[CalibrationReading]) -> list[str]:
    """One line per step."""
    lines = []
    for reading in readings:
        if reading.outside_bytes is None:
            lines.append(f"{reading.step:<9} failed: {reading.problem}")
            continue
        extra = [f"{key.removesuffix('_bytes')} {value / MiB:.3f} MiB" for key, value in _sizes(reading)]
        lines.append(
            f"{reading.step:<9} {reading.outside_bytes / MiB:8.1f} MiB by {reading.by} {'; '.join(extra)}".rstrip()
        )
    return lines


def _sizes(reading: CalibrationReading) -> list[tuple[str, int]]:
    names = ("handle_bytes", "lt_bytes", "reserved_bytes")
    return [(name, reading.answer[name]) for name in names if reading.answer.get(name) is not None]


def _context(read: Mapping[str, CalibrationReading], made: str, stack: str) -> list[str]:
    sizes = {step: reading.outside_bytes for step, reading in read.items() if reading.outside_bytes is not None}
    loaded = max(size for step, size in sizes.items() if step != "many" or len(sizes) == 1)
    readings = ", ".join(f"{size / MiB:.0f} {step}" for step, size in sizes.items())
    lines = [
        "",
        "[context]",
        f"low_bytes = {sizes['bare']}",
        f"typical_bytes = {sizes.get('many', loaded)}",
        f"high_bytes = {max(sizes.values())}",
        "derived = false",
        f"bare_bytes = {sizes['bare']}",
    ]
    if "cublas" in sizes:
        lines.append(f"cublas_bytes = {sizes['cublas']}")
    by = read["bare"].by
    lines.append(
        f"source = {json.dumps(f'NVML bytes of the {by} less reserved bytes, in MiB: {readings}; {made}, {stack}')}"
    )
    return lines


def _figure(name: str, value: object, source: str) -> list[str]:
    return ["", f"[{name}]", f"value = {json.dumps(value)}", f"source = {json.dumps(source)}"]


def _profile_name(gpu: str, total_bytes: int) -> str:
    plain = re.sub(r"^NVIDIA |^GeForce |^Tesla ", "", gpu).replace(" ", "-")
    return f"{plain}-{round(total_bytes / 1e9)}GB-measured"
