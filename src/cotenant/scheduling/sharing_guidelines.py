"""Whether jobs should share a GPU, and how, by the guidelines of the literature.

Source: thesis "Collocation and Memory Estimation for Efficient GPU Resource Management in DL Training" (ITU, 2025),
section 4.3.5: memory adds up and must fit; collocation pays up to an aggregate SM activity of 80 %; MPS is fastest, MIG
isolates and saves energy. `cotenant study collocate` tests each on measured rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cotenant.core.gpu import Sharing
from cotenant.core.units import format_bytes

MAX_SMACT_SUM = 0.8
"""Aggregate SM activity up to which collocation pays."""

Verdict = Literal["share", "marginal", "alone", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("share", "marginal", "unknown", "alone")
"""Best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloUse:
    """What a job uses of a whole GPU that it has to itself; None where that is not known."""

    name: str
    smact: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingAdvice:
    """What the guidelines say of a set of jobs on one GPU.

    Attributes:
        verdict: `share`; `marginal`: it fits, but the SMs are busy; `alone`: it does not fit; `unknown`.
        sharing: how to share, where the verdict is not `alone`.
        smact_sum, memory_sum_bytes: None where one job's figure is not known.
        reasons: sentences without a final stop.
    """

    jobs: tuple[str, ...]
    verdict: Verdict
    sharing: Sharing | None
    smact_sum: float | None
    memory_sum_bytes: int | None
    reasons: tuple[str, ...]


def sharing_advice(
    jobs: Sequence[SoloUse], gpu_memory_bytes: int, *, needs_isolation: bool = False, has_mps: bool = True
) -> SharingAdvice:
    """What the guidelines say of `jobs` on one GPU.

    `needs_isolation`: no job may slow down, or crash, another; `has_mps`: whether MPS is allowed.
    """
    memory = _sum([job.memory_bytes for job in jobs])
    smact = _sum([job.smact for job in jobs])
    memory_sum_bytes = None if memory is None else round(memory)
    reasons: list[str] = []
    verdict: Verdict = "share"
    if memory_sum_bytes is None:
        verdict = "unknown"
        reasons.append(f"the memory of {_unknown(jobs, 'memory_bytes')} is not known")
    elif memory_sum_bytes > gpu_memory_bytes:
        needed, there = format_bytes(memory_sum_bytes), format_bytes(gpu_memory_bytes)
        return SharingAdvice(
            jobs=tuple(job.name for job in jobs),
            verdict="alone",
            sharing=None,
            smact_sum=smact,
            memory_sum_bytes=memory_sum_bytes,
            reasons=(f"memory adds up to {needed}, the GPU has {there}",),
        )
    else:
        reasons.append(
            f"memory adds up to {format_bytes(memory_sum_bytes)} and fits into {format_bytes(gpu_memory_bytes)}"
        )
    if smact is None:
        verdict = "unknown"
        reasons.append(f"the SM activity of {_unknown(jobs, 'smact')} is not known")
    elif smact <= MAX_SMACT_SUM:
        reasons.append(f"SM activity adds up to {smact:.0%}, up to {MAX_SMACT_SUM:.0%} collocation pays")
    else:
        verdict = "marginal" if verdict == "share" else verdict
        reasons.append(f"SM activity adds up to {smact:.0%}, above {MAX_SMACT_SUM:.0%} jobs slow each other down")
    sharing: Sharing = "mig" if needs_isolation else "mps" if has_mps else "time-sliced"
    reasons.append(
        {
            "mig": "MIG isolates memory, faults and speed, and takes the least energy",
            "mps": "MPS is the fastest way to share, among jobs that trust each other",
            "time-sliced": "without MPS kernels take turns, which gains less",
        }[sharing]
    )
    return SharingAdvice(
        jobs=tuple(job.name for job in jobs),
        verdict=verdict,
        sharing=sharing,
        smact_sum=smact,
        memory_sum_bytes=memory_sum_bytes,
        reasons=tuple(reasons),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def _unknown(jobs: Sequence[SoloUse], field: Literal["smact", "memory_bytes"]) -> str:
    names = dict.fromkeys(job.name for job in jobs if getattr(job, field) is None)
    return ", ".join(f"`{name}`" for name in names)
