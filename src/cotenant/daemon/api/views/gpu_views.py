"""GPUs as JSON for clients, with what the caller may see of their jobs."""

from __future__ import annotations

import math
from collections.abc import Callable

from cotenant.core.gpu import GpuSample, GpuSnapshot, Resident
from cotenant.core.job import Job
from cotenant.daemon.api.schemas.gpu_schemas import GpuStatus, ResidentView, ServerTotals
from cotenant.daemon.api.views.usage_json import current_idle_s
from cotenant.scheduling.manager import Manager

MaySee = Callable[[Job], bool]


class GpuViews:
    """GPUs of `manager` at `at_s`, for one answer."""

    def __init__(self, manager: Manager, at_s: float) -> None:
        self._manager = manager
        self._at_s = at_s

    def gpus(self, *, may_see: MaySee = lambda _: True, first: int = 0, limit: int | None = None) -> list[GpuStatus]:
        """GPUs in display order, from place `first` on; ids and names of jobs that one may not see are left out."""
        gpus = self._manager.gpus[first : None if limit is None else first + limit]
        return [self._gpu(self._manager.gpu_snapshot(gpu, self._at_s), may_see) for gpu in gpus]

    def totals(self, *, may_see: MaySee = lambda _: True) -> ServerTotals:
        """Sums over all GPUs, and how full each is. A MIG instance's power is part of its GPU's."""
        loads = list(self._manager.gpu_occupancies())
        latest = [GpuSample(at_s=-math.inf) if load.latest is None else load.latest for load in loads]
        powers = [
            sample.power_w
            for load, sample in zip(loads, latest, strict=True)
            if load.gpu.mig_parent is None and _number(sample.power_w) is not None
        ]
        return {
            "gpus": len(loads),
            "busy": sum(bool(load.residents) for load in loads),
            "shared": sum(len(load.residents) > 1 for load in loads),
            "idle": sum(
                any(job.attempts[-1].idle_since_s is not None and may_see(job) for job in load.residents)
                for load in loads
            ),
            "memory_total_bytes": sum(load.gpu.memory_total_bytes for load in loads),
            "promised_bytes": sum(load.promised_bytes for load in loads),
            "used_bytes": sum(sample.used_bytes or 0 for sample in latest),
            "power_w": sum(power for power in powers if power is not None) if powers else None,
            "promised_ratios": [round(load.promised_bytes / load.gpu.memory_total_bytes, 3) for load in loads],
            "sample_ages_s": [
                round(max(0.0, self._at_s - sample.at_s)) if math.isfinite(sample.at_s) else None for sample in latest
            ],
        }

    def _gpu(self, snapshot: GpuSnapshot, may_see: MaySee) -> GpuStatus:
        gpu, latest = snapshot.gpu, snapshot.latest or GpuSample(at_s=self._at_s)
        return {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "server": gpu.server,
            "mig_parent": gpu.mig_parent,
            "mig_profile": gpu.mig_profile,
            "memory_total_bytes": gpu.memory_total_bytes,
            "used_bytes": latest.used_bytes,
            "promised_bytes": sum(resident.promised_bytes for resident in snapshot.residents),
            "foreign_bytes": snapshot.foreign_bytes,
            "available_bytes": snapshot.available_bytes,
            "smact": _number(latest.smact),
            "smocc": _number(latest.smocc),
            "drama": _number(latest.drama),
            "gract": _number(latest.gract),
            "tensor": _number(latest.tensor),
            "fp32": _number(latest.fp32),
            "pcie_tx_bytes_s": _number(latest.pcie_tx_bytes_s),
            "pcie_rx_bytes_s": _number(latest.pcie_rx_bytes_s),
            "sm_clock_mhz": _number(latest.sm_clock_mhz),
            "utilization": _number(latest.utilization),
            "power_w": _number(latest.power_w),
            "energy_j": _number(latest.energy_j),
            "power_is_assumed": gpu.mig_parent is not None,
            "sample_age_s": None if snapshot.latest is None else max(0.0, self._at_s - latest.at_s),
            "residents": [self._resident(resident, may_see) for resident in snapshot.residents],
        }

    def _resident(self, resident: Resident, may_see: MaySee) -> ResidentView:
        job = self._manager.jobs[resident.job_id]
        is_hidden = not may_see(job)
        status = None if is_hidden else self._manager.co_run_status(job)
        return {
            "job_id": None if is_hidden else job.id,
            "name": None if is_hidden else job.spec.name,
            "user": None if is_hidden else job.spec.user,
            "attempt": resident.attempt,
            "promised_bytes": resident.promised_bytes,
            "observed_bytes": resident.observed_bytes,
            "sharing": resident.sharing,
            "slowdown": None if status is None else status.measured,
            "predicted_slowdown": None if status is None else status.predicted,
            "idle_s": None if is_hidden else current_idle_s(job, self._at_s),
        }


def _number(value: float | None) -> float | None:
    """`value`, or None for NaN and infinity, which JSON lacks."""
    return value if value is not None and math.isfinite(value) else None
