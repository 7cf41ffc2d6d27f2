"""All estimators that answer from a trace, compared on one.

A module of its own: it imports every estimator; each of them stands alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotenant.core.errors import CotenantError
from cotenant.core.estimate import Estimate
from cotenant.estimators import ESTIMATORS, create
from cotenant.estimators.base import TraceBasedEstimator
from cotenant.estimators.trace_features import features_of
from cotenant.estimators.traced_result import TracedResult
from cotenant.gpu_specs import GpuSpec

_TRACED_LEAVES_OUT = "memory of other libraries outside the allocator; NCCL's is from one measurement"


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorResult:
    """The answer of one estimator, or in `problem` why it has none."""

    name: str
    estimate: Estimate | None
    problem: str | None
    leaves_out: str


def compare_estimators(traced: TracedResult, gpu: GpuSpec, command: Sequence[str] = ()) -> tuple[EstimatorResult, ...]:
    """The result `traced`, then that of every registered `TraceBasedEstimator` from the same trace.

    They come in the order of the registry. A plug-in that cannot be imported has its error as its `problem`.
    """
    ours = traced.estimate
    results = [EstimatorResult(name=ours.estimator, estimate=ours, problem=None, leaves_out=_TRACED_LEAVES_OUT)]
    features = features_of(traced.trace, command)
    for name in ESTIMATORS:
        estimate, problem, leaves_out = None, None, ""
        try:
            estimator = create(name)
            if not isinstance(estimator, TraceBasedEstimator):
                continue
            leaves_out = estimator.leaves_out
            estimate = estimator.on(traced.trace, features, gpu)
        except CotenantError as error:
            problem = error.message
        results.append(EstimatorResult(name=name, estimate=estimate, problem=problem, leaves_out=leaves_out))
    return tuple(results)
