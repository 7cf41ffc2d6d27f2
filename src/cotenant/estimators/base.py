"""The base of the estimators that others published: each answers from the trace of one script.

So all are asked about the very same run, and differ only in what they make of it. None of them states a margin or a
probability; their bound is their estimate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest
from cotenant.core.trace import MemoryTrace
from cotenant.estimators.trace_features import Features, features_of
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import GpuSpec, gpu_spec

POINT = 0.5
"""Coverage of an estimate without a margin: it claims no more than to be in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEstimate:
    """What a rule says.

    Attributes:
        allocated_bytes: None where the rule does not tell it from reserved; `breakdown_bytes` adds up to it.
        warnings: what it had to assume for this script.
        partial: something it needs was not known, so that it is too low.
    """

    reserved_bytes: int
    context_bytes: int = 0
    allocated_bytes: int | None = None
    breakdown_bytes: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    partial: bool = False


class TraceBasedEstimator(ABC):
    """An estimator that is a function of a trace. `leaves_out` says, for a table, what it does not count."""

    name: str
    version = "1"
    leaves_out: str

    def __init__(self, *, steps: int = 3, python: str | None = None) -> None:
        self._steps = steps
        self._python = python

    def estimate(self, request: EstimateRequest, tracer: TracedEstimator | None = None) -> Estimate:
        """The estimate; see `core.ports.Estimator`. `tracer`: makes the trace in place of one of its own."""
        tracer = tracer or TracedEstimator(steps=self._steps, python=self._python)
        recorded = tracer.explain(request).trace
        return self.on(recorded, features_of(recorded, request.command), gpu_spec(request.gpu))

    def on(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> Estimate:
        """The estimate from a recorded trace and its features; no script is run.

        Raises:
            UsageError: the rule is not made for such a script.
        """
        figures = self.figures(recorded, features, gpu)
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
            warnings=(*recorded.warnings, *figures.warnings),
            partial=recorded.partial or figures.partial,
        )

    @abstractmethod
    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:
        """What the rule says of this script."""
