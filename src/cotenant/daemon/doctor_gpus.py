"""What `doctor` finds of the GPUs: the driver, what can be read, and ways to share them or to leave them."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cotenant.core.errors import BackendError, CotenantError
from cotenant.core.gpu import Gpu
from cotenant.core.mig import layout_texts
from cotenant.core.units import format_bytes
from cotenant.engines.cuda_suspension import COMMAND as CUDA_CHECKPOINT
from cotenant.engines.cuda_suspension import MIN_DRIVER, check_program
from cotenant.gpu_specs import gpu_spec_for_nvml
from cotenant.gpus.mig_control import MigControl
from cotenant.gpus.mps import COMMAND as MPS_COMMAND

Severity = Literal["ok", "optional", "warning", "problem"]

DEFAULT_MPS_PIPE = Path("/tmp/nvidia-mps")  # noqa: S108 (NVIDIA's own default)
DRIVER_FILE = Path("/proc/driver/nvidia/version")
FIRST_CUDA_CHECKPOINT = 550
"""The first driver that supports any `cuda-checkpoint`. Source: README.md of github.com/NVIDIA/cuda-checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The result of one check.

    Attributes:
        severity: `optional` is absent and not needed; `warning` works with limits; `problem` does not work.
        advice: what to do, or empty.
    """

    subject: str
    severity: Severity
    detail: str
    advice: str = ""


def gpus() -> Iterator[Diagnosis]:
    """The GPUs that NVML lists, and whether they can be read."""
    from cotenant.gpus import create

    try:
        backend = create("nvml")
    except BackendError as error:
        yield Diagnosis(
            subject="GPUs",
            severity="warning",
            detail=f"none: {error.message}",
            advice="try it without: cotenant daemon --simulate 4xA100-40GB",
        )
        return
    try:
        found = backend.inventory()
        samples = backend.sample(0.0)
    finally:
        backend.close()
    if not found:
        yield Diagnosis(subject="GPUs", severity="warning", detail="NVML lists none")
        return
    for gpu in found:
        yield _gpu(gpu, readable=gpu.uuid in samples)
    silent = [gpu.index for gpu in found if gpu.uuid in samples and samples[gpu.uuid].smact is None]
    if silent:
        yield Diagnosis(
            subject="SM activity",
            severity="warning",
            detail=f"not known on GPU {', '.join(map(str, silent))}: policies with an SMACT limit share none of these",
            advice="install DCGM (datacenter-gpu-manager) and start nvidia-dcgm, or set policy.options.smact_limit = 1",
        )


def _gpu(gpu: Gpu, *, readable: bool) -> Diagnosis:
    name = f"GPU {gpu.index}"
    size = f"{gpu.name}, {format_bytes(gpu.memory_total_bytes)}"
    if not readable:
        return Diagnosis(
            subject=name, severity="problem", detail=f"{size}: cannot be read", advice="see `nvidia-smi`, `dmesg`"
        )
    if gpu_spec_for_nvml(gpu.name, gpu.memory_total_bytes) is None:
        return Diagnosis(
            subject=name,
            severity="warning",
            detail=f"{size}: no device profile, its context is a guess",
            advice="cotenant calibrate",
        )
    return Diagnosis(subject=name, severity="ok", detail=size)


def sharing() -> Iterator[Diagnosis]:
    """Whether MPS is installed and free."""
    if shutil.which(MPS_COMMAND) is None:
        yield Diagnosis(
            subject="MPS", severity="optional", detail=f"no `{MPS_COMMAND}`: GPUs can be shared by time slicing only"
        )
    elif (DEFAULT_MPS_PIPE / "control").exists():
        yield Diagnosis(
            subject="MPS",
            severity="warning",
            detail=f"a control daemon of another user or program runs at {DEFAULT_MPS_PIPE}: jobs become its clients",
            advice="stop it, or ask its owner to; cotenant starts its own in other folders",
        )
    else:
        yield Diagnosis(subject="MPS", severity="ok", detail='installed; used with policy.options.sharing = "mps"')


def mig_layouts() -> Iterator[Diagnosis]:
    """Whether the daemon could repartition GPUs in MIG mode (`mig.repartition`), and what is missing for it."""
    from cotenant.gpus import create

    try:
        backend = create("nvml")
    except BackendError:
        return  # `gpus` says so
    try:
        control: MigControl | None = getattr(backend, "mig", None)
        found = () if control is None else control.gpus()
    except CotenantError as error:
        advice = error.hint or "run the daemon as root"
        detail = f"layouts cannot be changed: {error.message}"
        yield Diagnosis(subject="MIG", severity="optional", detail=detail, advice=advice)
        return
    finally:
        backend.close()
    if not found:
        yield Diagnosis(subject="MIG", severity="optional", detail="no GPU is in MIG mode")
    elif os.geteuid() != 0:
        detail = "layouts cannot be changed: only root may create instances"
        yield Diagnosis(subject="MIG", severity="optional", detail=detail, advice="run the daemon as root")
    for gpu in found:
        layout = ", ".join(layout_texts(gpu.layout)) or "no instance"
        if gpu.foreign or gpu.incomplete:
            why = gpu.foreign or f"{', '.join(layout_texts(gpu.incomplete))} without compute instance"
            detail = f"GPU {gpu.index} has {layout}, and is not repartitioned: {why}"
        elif os.geteuid() == 0:
            detail = f"GPU {gpu.index} has {layout}, and can be repartitioned with `mig.repartition`; unproven"
        else:
            detail = f"GPU {gpu.index} has {layout}"
        yield Diagnosis(subject="MIG", severity="optional", detail=detail)


def suspension() -> Iterator[Diagnosis]:
    """Whether paused attempts could leave their GPUs (`engine.cuda_checkpoint`), and what is missing for it."""
    driver = driver_version()
    if driver is None:
        missing = "no NVIDIA driver"
    elif (number := int(driver.partition(".")[0])) < FIRST_CUDA_CHECKPOINT:
        missing = f"driver {driver}, {FIRST_CUDA_CHECKPOINT} is the first with `{CUDA_CHECKPOINT}`"
    elif number < MIN_DRIVER:
        missing = f"driver {driver}, which does not report the state of a process; {MIN_DRIVER} is needed"
    else:
        missing = ""
    program = shutil.which(CUDA_CHECKPOINT)
    if program is None:
        missing = f"{missing}, no `{CUDA_CHECKPOINT}`".removeprefix(", ")
    else:
        try:
            check_program(program)
        except BackendError as error:
            missing = f"{missing}, {error.message}".removeprefix(", ")
    if missing:
        detail = f"{missing}: paused attempts keep their GPU memory"
        yield Diagnosis(subject="suspension", severity="optional", detail=detail)
    else:
        yield Diagnosis(
            subject="suspension",
            severity="ok",
            detail=f"{program}, driver {driver}: paused attempts can leave their GPUs; unproven",
            advice=f'engine.cuda_checkpoint = "{program}" with scheduling.overrun = "pause"',
        )


def driver_version() -> str | None:
    """Version of the loaded NVIDIA driver, e.g. `570.86.10`; None without one."""
    try:
        text = DRIVER_FILE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)\s", text)
    return found[1] if found else None
