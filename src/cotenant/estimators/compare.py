"""All estimators that answer from a trace, asked about one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotenant.core.errors import CotenantError
from cotenant.core.estimate import Estimate
from cotenant.estimators import ESTIMATORS, create
from cotenant.estimators.base import TraceBasedEstimator
from cotenant.estimators.trace_features import features_of
from cotenant.estimators.traced import TracedResult
from cotenant.gpu_specs import GpuSpec

_TRACED_LEAVES_OUT = "memory of other libraries outside the allocator; NCCL's is from one measurement"


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatorResult:
    """One estimator's answer, or in `problem` why it has none."""

    name: str
    estimate: Estimate | None
    problem: str | None
    leaves_out: str


def compare_estimators(traced: TracedResult, gpu: GpuSpec, command: Sequence[str] = ()) -> tuple[EstimatorResult, ...]:
    """That of `traced`, then that of every registered `TraceBasedEstimator` from the same trace, in the order of the registry."""
    ours = traced.estimate
    found = [EstimatorResult(name=ours.estimator, estimate=ours, problem=None, leaves_out=_TRACED_LEAVES_OUT)]
    features = features_of(traced.trace, command)
    for name in ESTIMATORS:
        rule = create(name)
        if not isinstance(rule, TraceBasedEstimator):
            continue
        estimate, problem = None, None
        try:
            estimate = rule.on(traced.trace, features, gpu)
        except CotenantError as error:
            problem = error.message
        found.append(EstimatorResult(name=name, estimate=estimate, problem=problem, leaves_out=rule.leaves_out))
    return tuple(found)
