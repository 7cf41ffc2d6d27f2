"""GPUs as the scheduler sees them: what they are, what was last read of them, who lives there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sharing = Literal["exclusive", "time-sliced", "mps", "mig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG instance. `index` is for display only; `uuid` is the identity.

    Attributes:
        server: name of the host that it is in; empty where there is one server only.
        mig_parent: UUID of the GPU that holds this MIG instance, or None.
        mig_profile: e.g. `3g.20gb`, or None.
    """

    uuid: str
    index: int
    name: str
    memory_total_bytes: int
    mig_parent: str | None = None
    mig_profile: str | None = None
    server: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process with memory on a GPU; None where the driver does not say.

    `sm`: its part of the SMs' time since the last reading, 0..1.
    """

    pid: int
    used_bytes: int | None
    sm: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSample:
    """One reading of one GPU. What could not be read is None, never 0.

    Attributes:
        used_bytes: all memory in use on the device, whoever holds it.
        smact, smocc, drama: SM activity, SM occupancy, DRAM activity; ratios 0..1.
        utilization: NVML's `utilization.gpu` as a ratio; not SM activity, kept apart on purpose.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """An attempt that has been placed on a GPU and has not ended.

    Attributes:
        promised_bytes: set aside for it here.
        observed_bytes: most bytes it was seen to use here; None before it was first seen.
        placed_at_s: when the decision was taken.
        first_active_at_s: when it first held memory here; None before that.
        gpus: how many it has in all, this one included.
        workload: key shared by jobs of the same workload (`scheduling/prediction/history.py`), or None.
        smact: what it does to a GPU alone, as earlier jobs of the same work did; None where not known.
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

    @property
    def held_bytes(self) -> int:
        """What this resident must be counted with: its promise, or more once it was seen to use more."""
        return max(self.promised_bytes, self.observed_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSnapshot:
    """A GPU at a moment: newest samples last, and its residents.

    Attributes:
        foreign_bytes: in use by processes that are not ours; None when it cannot be told.
    """

    gpu: Gpu
    samples: tuple[GpuSample, ...]
    residents: tuple[Resident, ...]
    foreign_bytes: int | None

    @property
    def available_bytes(self) -> int | None:
        """Bytes that may still be promised; None (admit nothing) while strangers' use is unknown.

        total - strangers - sum over residents of max(promised, observed); never below 0.
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
