"""GPUs as the scheduler sees them: inventory, newest samples, and resident attempts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cotenant.core.estimate import SmactInterval

Sharing = Literal["exclusive", "time-sliced", "mps", "mig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG instance. `index` is for display only; `uuid` is the identity.

    Attributes:
        server: name of the host that it is in; empty where there is one server only.
        mig_parent: UUID of the GPU that holds this MIG instance, or None.
        mig_profile: e.g. `3g.20gb`, or None.
        available_until_s: when the allocation that it is in ends, on the clock of the daemon; None: never.
    """

    uuid: str
    index: int
    name: str
    memory_total_bytes: int
    mig_parent: str | None = None
    mig_profile: str | None = None
    server: str = ""
    available_until_s: float | None = None


WHOLE_GPU_SLICES = 7
"""MIG divides the SMs of a GPU into so many parts."""


def mig_slices(profile: str) -> int:
    """How many of `WHOLE_GPU_SLICES` a MIG profile has, e.g. 3 of `3g.20gb`; 0 where it says none."""
    digits = profile.partition("g")[0]
    return int(digits) if digits.isdecimal() and len(digits) == 1 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with memory on a GPU; None where the driver does not report it.

    `sm`: its share of the SMs' time since the last sample, 0..1.
    """

    pid: int
    used_bytes: int | None
    sm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One sample of one GPU. A value that could not be read is None, never 0.

    Attributes:
        used_bytes: all memory in use on the device, of all processes.
        gract, smact, smocc, drama: activity of the graphics engine, of the SMs, SM occupancy, DRAM activity;
            ratios 0..1, as DCGM defines them.
        tensor, fp32: activity of the tensor cores and of the FP32 units; ratios 0..1.
        pcie_tx_bytes_s, pcie_rx_bytes_s: bytes per second over PCIe, from and to the GPU.
        utilization: NVML's `utilization.gpu` as a ratio: time with any kernel, not SM activity.
        sm_clock_mhz: clock of the SMs now.
        energy_j: joules since the driver was loaded.
    """

    at_s: float
    used_bytes: int | None = None
    smact: float | None = None
    smocc: float | None = None
    drama: float | None = None
    utilization: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    gract: float | None = None
    tensor: float | None = None
    fp32: float | None = None
    pcie_tx_bytes_s: float | None = None
    pcie_rx_bytes_s: float | None = None
    sm_clock_mhz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """An attempt that has been placed on a GPU and has not ended.

    Attributes:
        promised_bytes: memory reserved for it on this GPU.
        observed_bytes: peak of the memory that it was seen to use on this GPU; None before the first sample.
        placed_at_s: time of the decision.
        first_active_at_s: when it first held memory on this GPU; None before that.
        gpus: how many GPUs it has, including this one.
        workload: key shared by jobs of the same workload (`scheduling/prediction/history.py`), or None.
        smact: SM activity alone on a GPU, from earlier jobs of the same workload; None where not known.
        expected_smact: what its estimate expects of it; None where it does not.
    """

    job_id: int
    attempt: int
    promised_bytes: int
    observed_bytes: int | None
    sharing: Sharing
    placed_at_s: float
    first_active_at_s: float | None = None
    max_slowdown: float | None = None
    gpus: int = 1
    workload: str | None = None
    smact: float | None = None
    expected_smact: SmactInterval | None = None

    @property
    def held_bytes(self) -> int:
        """Memory to subtract for this resident: its promise, or its observed peak if that is larger."""
        return max(self.promised_bytes, self.observed_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSnapshot:
    """A GPU at one time: its samples, newest last, and its residents.

    Attributes:
        foreign_bytes: memory in use by processes of no job; None where it cannot be determined.
    """

    gpu: Gpu
    samples: tuple[GpuSample, ...]
    residents: tuple[Resident, ...]
    foreign_bytes: int | None

    @property
    def available_bytes(self) -> int | None:
        """Bytes that can still be promised; None (admit nothing) while `foreign_bytes` is unknown.

        total - foreign - sum over residents of max(promised, observed); never below 0.
        """
        if self.foreign_bytes is None:
            return None
        held = sum(resident.held_bytes for resident in self.residents)
        return max(0, self.gpu.memory_total_bytes - self.foreign_bytes - held)

    @property
    def latest(self) -> GpuSample | None:
        """The newest sample, or None before the first."""
        return self.samples[-1] if self.samples else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSnapshot:
    """All GPUs of one server at `at_s`, in display order."""

    at_s: float
    gpus: tuple[GpuSnapshot, ...]
