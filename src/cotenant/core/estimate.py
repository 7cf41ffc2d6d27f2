"""Estimates of GPU memory: what estimators return and the scheduler plans with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

from cotenant.core.units import format_bytes


class SmactInterval(NamedTuple):
    """Expected SM activity of a job alone on a GPU, 0..1, and an interval: 90 % of jobs are within on each side."""

    low: float
    expected: float
    high: float


SMACT_REACH = (0.10, 0.13)
"""How far an interval reaches below and above an expectation by memory alone, and one of which no interval is known.

90 % of the jobs of networks left out are within on each side (decision 0082).
"""


def smact_interval_around(expected: float) -> SmactInterval:
    """The interval of an expectation with `SMACT_REACH`."""
    below, above = SMACT_REACH
    return SmactInterval(max(0.0, expected - below), expected, min(1.0, expected + above))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEstimate:
    """What one process needs on one of several GPUs; the fields are those of `Estimate`.

    Attributes:
        index: of the GPU, as the script numbers them.
    """

    index: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    device_bytes: int
    bound_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """Memory of a process over the steps that were traced, in few points.

    Attributes:
        category_bytes: requested bytes at each point, by category; all of the same length.
        phases: (first point, name) of each phase.
    """

    category_bytes: Mapping[str, tuple[int, ...]]
    phases: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predicted GPU memory of one process of a job, on one GPU.

    Attributes:
        peak_allocated_bytes: peak of the bytes in live blocks (`torch.cuda.max_memory_allocated`); None where the
            estimator knows reserved bytes only.
        peak_reserved_bytes: peak of the bytes that the caching allocator holds from the driver.
        context_bytes: CUDA context, loaded kernels and libraries, outside the allocator.
        margin_bytes: bytes to add so that the true peak fits with probability `coverage`.
        breakdown_bytes: live bytes by category at the peak of allocated bytes.
        estimator: registered name; `version` changes when its numbers may.
        gpu: name of the GPU in `gpu_specs`.
        partial: something is not included (a warning says what), so the number is a lower bound.
        eager: code that is compiled on a GPU was traced eagerly, so the job may need less: the number excludes no GPU.
        per_gpu: for a process that uses several GPUs, the estimate of each; the fields above are those of the GPU with
            the largest bound. Empty for one GPU.
        processes: how many processes like this one the command starts, each with GPUs of its own.
        smact, smocc: expected SM activity and SM occupancy of the job alone on the GPU, 0..1; None where not estimated.
        smact_low, smact_high: interval of the SM activity; None in records from before there was one.
    """

    peak_allocated_bytes: int | None
    peak_reserved_bytes: int
    context_bytes: int
    margin_bytes: int
    coverage: float
    estimator: str
    version: str
    gpu: str
    breakdown_bytes: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    partial: bool = False
    per_gpu: tuple[GpuEstimate, ...] = ()
    processes: int = 1
    smact: float | None = None
    smocc: float | None = None
    eager: bool = False
    smact_low: float | None = None
    smact_high: float | None = None

    @property
    def smact_interval(self) -> SmactInterval | None:
        """Expected SM activity with its interval, which an older record does not have; None where not estimated."""
        if self.smact is None:
            return None
        if self.smact_low is None or self.smact_high is None:
            return smact_interval_around(self.smact)
        return SmactInterval(self.smact_low, self.smact, self.smact_high)

    @property
    def device_bytes(self) -> int:
        """Memory that nvidia-smi shows for the process at its peak."""
        return self.peak_reserved_bytes + self.context_bytes

    @property
    def bound_bytes(self) -> int:
        """Memory that a policy must find free."""
        return self.device_bytes + self.margin_bytes

    @property
    def bound_meaning(self) -> str:
        """What the bound is for, in words; that of a partial estimate covers the traced part alone."""
        margin = format_bytes(self.margin_bytes)
        if self.partial:
            return f"what was traced, with a margin of {margin}; the job may need more"
        return f"require this much free: margin {margin}, {self.coverage * 100:.3g}% of jobs stay below"

    def _repr_html_(self) -> str:
        """For Jupyter: the numbers, what they are made of, and the warnings."""
        rows = [
            ("peak allocated", self.peak_allocated_bytes),
            ("peak reserved", self.peak_reserved_bytes),
            ("device", self.device_bytes),
            ("bound", self.bound_bytes),
            *sorted(self.breakdown_bytes.items(), key=lambda part: -part[1]),
        ]
        cells = "".join(f"<tr><th>{escape(name)}</th><td>{format_bytes(value)}</td></tr>" for name, value in rows)
        title = f"{escape(self.estimator)} on {escape(self.gpu)}{' (a lower bound)' if self.partial else ''}"
        notes = "".join(f"<p>{escape(warning)}</p>" for warning in self.warnings)
        return f"<table><caption>{title}</caption>{cells}</table>{notes}"
