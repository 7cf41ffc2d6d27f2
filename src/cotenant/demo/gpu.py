"""Estimates one example for the GPU of this machine, and measures it there."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import cotenant
from cotenant import gpus
from cotenant.core.errors import CotenantError
from cotenant.core.ports import GpuBackend

SCRIPT = "mlp.py"
ARGS = ("--hidden", "8192", "8192", "8192", "--epochs", "40")
SAMPLE_EVERY_S = 0.05
LIMIT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoMeasurement:
    """The estimate of an example and its measured peak; `reason` says why there is none."""

    script: str = ""
    gpu: str | None = None
    estimated_bytes: int | None = None
    measured_bytes: int | None = None
    reason: str = ""


def measure_mlp(examples: Path) -> DemoMeasurement:
    """Run `mlp.py` on the first GPU and sample the memory of its process."""
    try:
        backend = gpus.create("nvml")
    except CotenantError as error:
        return DemoMeasurement(reason=error.message)
    try:
        return _measure(backend, examples / SCRIPT)
    except CotenantError as error:
        return DemoMeasurement(reason=error.message)
    finally:
        backend.close()


def _measure(backend: GpuBackend, script: Path) -> DemoMeasurement:
    gpu = backend.inventory()[0]
    estimate = cotenant.estimate(script, ARGS, gpu=gpu.name)
    # Probe first, to distinguish a torch that cannot use the GPU from a script that fails.
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False).returncode:
        return DemoMeasurement(reason=f"the torch of `{sys.executable}` cannot use the {gpu.name}")
    job = subprocess.Popen([sys.executable, str(script), *ARGS], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak_bytes = 0
    try:
        end_s = time.monotonic() + LIMIT_S
        while job.poll() is None and time.monotonic() < end_s:
            sample = backend.sample(time.time()).get(gpu.uuid)
            held = [
                process.used_bytes or 0 for process in (sample.processes if sample else ()) if process.pid == job.pid
            ]
            peak_bytes = max([peak_bytes, *held])
            time.sleep(SAMPLE_EVERY_S)
    finally:
        if job.poll() is None:
            job.kill()
        job.wait()
    if not peak_bytes:
        return DemoMeasurement(reason=f"the driver of the {gpu.name} does not report the memory of processes")
    return DemoMeasurement(
        script=f"{script.stem} {' '.join(ARGS)}",
        gpu=gpu.name,
        estimated_bytes=estimate.device_bytes,
        measured_bytes=peak_bytes,
    )
