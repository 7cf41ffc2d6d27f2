"""A GPU of a simulated server: its state, the processes on it, and its file.

Every simulated job imports this module, so it imports only what is quick to import: no dataclasses, no tables.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cotenant.core.gpu import mig_slices
from cotenant.gpus.power_model import gpu_power


class SimulatedOutOfMemory(Exception):
    """The GPU has less free memory than was requested; the attributes are what torch's message contains."""

    def __init__(self, tried_bytes: int, gpu: GpuState, own: AttachedProcess) -> None:
        super().__init__(f"tried to allocate {tried_bytes} bytes with {gpu.free_bytes} free")
        self.gpu_uuid = gpu.uuid
        self.tried_bytes = tried_bytes
        self.free_bytes = gpu.free_bytes
        self.total_bytes = gpu.total_bytes
        attached = own in gpu.processes
        self.own_bytes = own.used_bytes if attached else 0
        self.own_allocated_bytes = own.allocated_bytes
        self.others = tuple((process.pid, process.used_bytes) for process in gpu.processes if process.key != own.key)


class AttachedProcess(NamedTuple):
    """A process on a GPU.

    `smact`, `smocc`, `drama`, `utilization` are those of the process alone on the GPU; `speed`, 0..1, is its present
    speed as a share of its speed alone, as it reported last.
    """

    key: str
    pid: int
    start_ticks: int
    boot_id: str
    label: str
    context_bytes: int
    allocated_bytes: int = 0
    smact: float = 0.0
    smocc: float = 0.0
    drama: float = 0.0
    utilization: float = 0.0
    speed: float = 1.0

    @property
    def used_bytes(self) -> int:
        """Memory that nvidia-smi would show for it."""
        return self.context_bytes + self.allocated_bytes


class ActivityChange(NamedTuple):
    """The processes that are active from virtual time `at_s` on: (key, label, SM activity alone)."""

    at_s: float
    active: tuple[tuple[str, str, float], ...]


class GpuState(NamedTuple):
    """A GPU or MIG instance at virtual time `at_s`; `board_power_w` is the power limit of the GPU.

    `model`: e.g. `A100-40GB`, of an instance `A100-40GB/3g.20gb`.
    """

    uuid: str
    number: int
    model: str
    total_bytes: int
    board_power_w: float
    at_s: float = 0.0
    energy_j: float = 0.0
    failed: bool = False
    processes: tuple[AttachedProcess, ...] = ()
    changes: tuple[ActivityChange, ...] = (ActivityChange(0.0, ()),)

    @property
    def used_bytes(self) -> int:
        """Memory in use by all processes."""
        return sum(process.used_bytes for process in self.processes)

    @property
    def free_bytes(self) -> int:
        """Memory that is left for allocations."""
        return self.total_bytes - self.used_bytes

    @property
    def smact(self) -> float:
        """SM activity now: the sum of the processes' own activity, each times its speed; at most 1."""
        return min(1.0, sum(process.smact * process.speed for process in self.processes))

    @property
    def utilization(self) -> float:
        """Share of the time in which any process runs, as if they ran independently of each other.

        A process that reports none counts with the root of its SM activity, which fits the workloads measured on an
        A100 (rms error 0.09).
        """
        parts = (process.utilization or math.sqrt(process.smact) for process in self.processes)
        return 1.0 - math.prod(1.0 - min(1.0, part) for part in parts)

    @property
    def power_w(self) -> float:
        """Watts now."""
        whole, _, profile = self.model.partition("/")
        watts = gpu_power(whole, self.board_power_w).watts(len(self.processes), self.utilization)
        return watts * mig_slices(profile) / 7.0 if profile else watts


def gpu_json(gpu: GpuState) -> dict[str, Any]:
    """The GPU as its file holds it."""
    return {
        **gpu._asdict(),
        "processes": [process._asdict() for process in gpu.processes],
        "changes": [change._asdict() for change in gpu.changes],
    }


def read_gpu(path: Path) -> GpuState:
    """A GPU as it was last changed.

    Raises:
        OSError, ValueError: there is none, or its file cannot be decoded.
    """
    value = json.loads(path.read_text())
    processes = tuple(AttachedProcess(**process) for process in value["processes"])
    changes = tuple(ActivityChange(change["at_s"], _active(change["active"])) for change in value["changes"])
    return GpuState(**{**value, "processes": processes, "changes": changes})


def _active(rows: Sequence[Sequence[Any]]) -> tuple[tuple[str, str, float], ...]:
    return tuple((str(key), str(label), float(smact)) for key, label, smact in rows)
