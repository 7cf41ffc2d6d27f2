"""GPUs in answers of the HTTP API."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict


class ResidentView(TypedDict):
    """A job on a GPU; id, name and user are null for a job of another user."""

    job_id: int | None
    name: str | None
    user: str | None
    attempt: int
    promised_bytes: int
    observed_bytes: int | None
    sharing: str
    slowdown: Annotated[float | None, "measured: step time beside its neighbors relative to the step time alone"]
    predicted_slowdown: float | None
    idle_s: Annotated[float | None, "for so long it has computed nothing; null where it computes"]


class GpuStatus(TypedDict):
    """A GPU or a MIG instance, with its newest sample."""

    index: int
    uuid: str
    name: str
    server: Annotated[str, "name of the host that it is in; empty where the daemon has one only"]
    mig_parent: str | None
    mig_profile: str | None
    memory_total_bytes: int
    used_bytes: int | None
    promised_bytes: int
    foreign_bytes: Annotated[int | None, "held by processes that are not of our jobs"]
    available_bytes: Annotated[int | None, "what may still be promised"]
    smact: float | None
    smocc: float | None
    drama: float | None
    gract: Annotated[float | None, "activity of the graphics engine, 0..1"]
    tensor: Annotated[float | None, "activity of the tensor cores, 0..1"]
    fp32: Annotated[float | None, "activity of the FP32 units, 0..1"]
    pcie_tx_bytes_s: Annotated[float | None, "bytes per second over PCIe from the GPU"]
    pcie_rx_bytes_s: Annotated[float | None, "bytes per second over PCIe to the GPU"]
    sm_clock_mhz: float | None
    utilization: float | None
    power_w: float | None
    energy_j: float | None
    power_is_assumed: Annotated[bool, "a MIG instance gets its share of the GPU's power by size"]
    sample_age_s: float | None
    residents: list[ResidentView]


class ServerTotals(TypedDict):
    """Sums over all GPUs, and how full each of them is."""

    gpus: int
    busy: Annotated[int, "GPUs with jobs"]
    shared: Annotated[int, "GPUs with several jobs"]
    idle: Annotated[int, "GPUs with a job of the caller that computes nothing; of any job for admins"]
    memory_total_bytes: int
    promised_bytes: int
    used_bytes: int
    power_w: Annotated[float | None, "a MIG instance's power is part of its GPU's"]
    promised_ratios: Annotated[list[float], "promised share of the memory of each GPU, in display order"]
    sample_ages_s: Annotated[list[int | None], "age of the newest sample of each GPU; null before the first"]


class GpuHistory(TypedDict):
    """Samples of a GPU over time, averaged over intervals."""

    index: int
    uuid: str
    name: str
    memory_total_bytes: int
    points: list[dict[str, Any]]
