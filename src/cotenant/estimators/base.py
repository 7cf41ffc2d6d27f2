"""Capabilities that an estimator can declare, and the base of those that answer from the trace of a script.

All published and learned estimators answer from the same trace, so a comparison differs only in what they make of it.
None of them states a margin or a probability: their bound is their estimate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest
from cotenant.core.trace import MemoryTrace
from cotenant.estimators.trace_features import Features, features_of
from cotenant.estimators.traced import TracedEstimator
from cotenant.estimators.traced_result import TracedResult
from cotenant.gpu_specs import GpuSpec, gpu_spec

POINT = 0.5
"""Coverage of an estimate without a margin: the true peak is above it as often as below."""


@runtime_checkable
class ExplainingEstimator(Protocol):
    """An estimator whose answer comes with its trace and replay, from which reports are made.

    Those are `--fits-on`, `--what-if`, `--plot` and the like.
    """

    name: str
    version: str

    def estimate(self, request: EstimateRequest) -> Estimate:
        """As of `core.ports.Estimator`."""
        ...

    def explain(self, request: EstimateRequest) -> TracedResult:
        """The estimate with all that it came from; raises as `estimate` does."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEstimate:
    """Memory as a published or learned estimator computes it.

    Attributes:
        allocated_bytes: None where the estimator does not distinguish it from reserved; the sum of `breakdown_bytes`.
        warnings: assumptions made for this script.
        partial: a quantity it needs is unknown, so that the estimate is too low.
    """

    reserved_bytes: int
    context_bytes: int = 0
    allocated_bytes: int | None = None
    breakdown_bytes: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    partial: bool = False


class TraceBasedEstimator(ABC):
    """An estimator that is a function of a trace; `tracer` runs the script, by default without a cache.

    Attributes:
        leaves_out: what it does not count, for the table of `cotenant compare`.
    """

    name: str
    version = "1"
    leaves_out: str

    def __init__(self, tracer: TracedEstimator | None = None) -> None:
        self._tracer = tracer or TracedEstimator()

    @classmethod
    def from_tracer(cls, tracer: TracedEstimator) -> TraceBasedEstimator:
        """One whose scripts `tracer` runs."""
        return cls(tracer)

    def estimate(self, request: EstimateRequest) -> Estimate:
        """The estimate; see `core.ports.Estimator`."""
        recorded = self._tracer.explain(request).trace
        return self.on(recorded, features_of(recorded, request.command), gpu_spec(request.gpu))

    def on(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> Estimate:
        """The estimate from a recorded trace and its features; no script is run.

        Raises:
            UsageError: the estimator does not apply to such a script.
        """
        estimate = self.estimate_of(self.figures(recorded, features, gpu), gpu)
        warnings = (*recorded.warnings, *estimate.warnings)
        return replace(estimate, warnings=warnings, partial=recorded.partial or estimate.partial)

    def estimate_of(self, figures: RawEstimate, gpu: GpuSpec) -> Estimate:
        """The estimate with these figures."""
        return Estimate(
            peak_allocated_bytes=figures.allocated_bytes,
            peak_reserved_bytes=figures.reserved_bytes,
            context_bytes=figures.context_bytes,
            margin_bytes=0,
            coverage=POINT,
            estimator=self.name,
            version=self.version,
            gpu=gpu.name,
            breakdown_bytes=figures.breakdown_bytes,
            warnings=figures.warnings,
            partial=figures.partial,
        )

    @abstractmethod
    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:
        """The estimator's own computation."""
