"""The trace's bytes and a learned residual, with a calibrated margin."""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.core.estimate import Estimate
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.layer_kinds import layer_kind
from cotenant.estimators.learned.network_features import Replays, conv_features, replays_of
from cotenant.estimators.learned.weights import Weights, forest_predict, shipped, vector_of
from cotenant.estimators.replay_input import make_replay_input, software_stack
from cotenant.estimators.roofline import with_activity
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec

FLOOR_BYTES = 200 * MiB
"""Added to the reserved bytes that residuals are relative to, so that small jobs do not dominate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The learned shift of the reserved bytes of a replay, and the margin on top.

    Attributes:
        coverage: of the margin; less than requested where it is calibrated on too few rows.
        beyond: features outside the range of the training data; then the shift is 0.
    """

    shift_bytes: int
    margin_bytes: int
    coverage: float
    rows: int
    beyond: tuple[str, ...] = ()


def kind_of_trace(trace: MemoryTrace) -> str:
    """`conv`, `attention` or `dense`: kinds of networks whose replays have different errors."""
    if any(op.kind.startswith("conv") for op in trace.ops):
        return "conv"
    kinds = {layer_kind(call.kind) for call in trace.header.layers}
    return "attention" if kinds & {"attention", "embedding"} else "dense"


def correct(weights: Weights, trace: MemoryTrace, replays: Replays) -> Correction:
    """The correction for a trace with such replays."""
    scale = replays.reserved_bytes + FLOOR_BYTES
    features = conv_features(trace, replays)
    beyond = weights.beyond(features) if features is not None else ()
    residual = forest_predict(weights, vector_of(weights, features)) if features is not None and not beyond else 0.0
    kind = kind_of_trace(trace)
    # Without a shift, the errors are those of the replay alone.
    calibration = weights.meta["calibration"]["conv-uncorrected" if beyond else kind]
    return Correction(
        shift_bytes=round(residual * scale),
        margin_bytes=round(calibration["quantile"] * scale),
        coverage=float(calibration["coverage"]),
        rows=int(calibration["rows"]),
        beyond=beyond,
    )


class HybridEstimator(TraceBasedEstimator):
    """The bytes of the trace and, for networks that convolve, a learned residual; a conformal margin.

    The residual is the difference between GPUMemNet's measurements of CNNs and the replay: workspaces that the rule for
    cuDNN does not predict. Outside the range of its training data it is 0. The margin is a one-sided split-conformal
    quantile of out-of-fold errors, relative to the reserved bytes, separately for the three kinds of networks.
    Source of the margin: Vovk et al., Algorithmic Learning in a Random World, 2005 (inductive conformal prediction).
    """

    name = "hybrid"
    leaves_out = "as `traced`; its residual knows the CNNs of one data set on one GPU"

    def on(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> Estimate:
        figures, correction = self._answer(recorded, gpu)
        estimate = Estimate(
            peak_allocated_bytes=figures.allocated_bytes,
            peak_reserved_bytes=figures.reserved_bytes,
            context_bytes=figures.context_bytes,
            margin_bytes=correction.margin_bytes + gpu.context.high_bytes - gpu.context.typical_bytes,
            coverage=correction.coverage,
            estimator=self.name,
            version=self.version,
            gpu=gpu.name,
            breakdown_bytes=figures.breakdown_bytes,
            warnings=(*recorded.warnings, *figures.warnings),
            partial=recorded.partial,
        )
        return with_activity(estimate, recorded, gpu, features)

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        return self._answer(recorded, gpu)[0]

    def _answer(self, recorded: MemoryTrace, gpu: GpuSpec) -> tuple[RawEstimate, Correction]:
        replay_input = make_replay_input(recorded, gpu, software_stack(recorded.header))
        result = replay_input.replay()
        correction = correct(shipped(self.name, "all"), recorded, replays_of(recorded, replay_input, result))
        warning = f"hybrid: no residual, since {', '.join(correction.beyond[:2])}" if correction.beyond else ""
        corrected = result.peak_reserved_bytes + correction.shift_bytes
        figures = RawEstimate(
            reserved_bytes=max(corrected, result.peak_allocated_bytes, 2 * MiB),
            context_bytes=gpu.context.typical_bytes,
            allocated_bytes=result.peak_allocated_bytes,
            breakdown_bytes=dict(result.breakdown_bytes),
            warnings=(warning,) if warning else (),
        )
        return figures, correction
