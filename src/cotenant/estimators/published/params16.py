"""The trivial rule."""

from __future__ import annotations

from cotenant.core.trace import MemoryTrace
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec

BYTES_PER_PARAMETER = 16


class Params16Estimator(TraceBasedEstimator):
    """Sixteen bytes a trained parameter: weight, gradient and the two states of Adam in fp32.

    Mixed precision has 16 bytes of model states as well (Rajbhandari et al., ZeRO, SC 2020, section 3.1).
    Limits: everything else, activations first.
    """

    name = "params16"
    leaves_out = "activations, temporaries, allocator, workspaces, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        return RawEstimate(reserved_bytes=BYTES_PER_PARAMETER * features.parameters)
