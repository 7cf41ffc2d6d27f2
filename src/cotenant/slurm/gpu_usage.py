"""GPU memory and energy of one job on Slurm, read where it runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant import gpus
from cotenant.core.errors import CotenantError
from cotenant.core.events import AttemptSample
from cotenant.core.gpu import GpuSample
from cotenant.core.job import Job, JobSpec, Queued
from cotenant.osutil import procfs
from cotenant.scheduling.telemetry.usage import UsageMeter

if TYPE_CHECKING:
    from cotenant.core.ports import GpuBackend

_KEY = (1, 1)
STALE_AFTER_S = 30.0


class JobGpuUsage:
    """Meters the processes of one job, on the GPUs that it may see.

    Args:
        own: gives those of some pids that are of the job.

    Attributes:
        peak_bytes: most that they held on one GPU; None before the first sample that shows them.
    """

    def __init__(self, backend: GpuBackend, own: Callable[[set[int]], Collection[int]]) -> None:
        self._backend = backend
        self._own = own
        self._meter = UsageMeter(stale_after_s=STALE_AFTER_S)
        self._meter.watch(_KEY)
        spec = JobSpec(command=(), workdir="", env={}, user="", uid=os.getuid(), name="")
        self._jobs = {1: Job(id=1, spec=spec, submitted_at_s=0.0, state=Queued(since_s=0.0))}
        self.peak_bytes: int | None = None
        self.total_bytes = {gpu.uuid: gpu.memory_total_bytes for gpu in backend.inventory()}
        self.free_bytes: int | None = None

    @property
    def energy_j(self) -> float | None:
        """Its share of the energy so far; None where none was read."""
        usage = self._meter.usage(_KEY)
        return usage.energy_j if usage is not None and usage.metered_s else None

    def read(self) -> None:
        """Take one sample; a GPU that cannot be read is left out."""
        try:
            samples: Mapping[str, GpuSample] = self._backend.sample(time.monotonic())
        except CotenantError:
            return
        own = self._own({process.pid for sample in samples.values() for process in sample.processes})
        for uuid, sample in samples.items():
            processes = [process for process in sample.processes if process.pid in own]
            held = sum(process.used_bytes or 0 for process in processes)
            observed = []
            if processes:
                self.peak_bytes = max(self.peak_bytes or 0, held)
                sms = [process.sm for process in processes if process.sm is not None]
                sm = sum(sms) if len(sms) == len(processes) else None
                observed = [AttemptSample(job_id=1, attempt=1, gpu_uuid=uuid, used_bytes=held, sm=sm)]
                if sample.used_bytes is not None:
                    self.free_bytes = max(0, self.total_bytes.get(uuid, 0) - sample.used_bytes)
            self._meter.note(uuid, sample, observed, self._jobs, has_foreign=len(processes) < len(sample.processes))


def open_job_usage(root_pid: int) -> JobGpuUsage | None:
    """The meter for the processes below `root_pid`; None where GPUs cannot be read.

    `$COTENANT_SIM_SERVER` names a simulated server in place of the driver's GPUs.
    """
    simulated = os.environ.get("COTENANT_SIM_SERVER")
    options = gpus.BackendOptions(simulated_dir=Path(simulated) if simulated else None)
    try:
        backend = gpus.create("simulated" if simulated else "auto", options)
        return JobGpuUsage(backend, lambda _: {root_pid, *procfs.descendants(root_pid)})
    except (CotenantError, OSError):
        return None
