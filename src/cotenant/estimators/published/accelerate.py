"""What `accelerate estimate-memory` tells for training."""

from __future__ import annotations

from cotenant.core.trace import MemoryTrace
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec


class AccelerateEstimator(TraceBasedEstimator):
    """Four times the bytes of the model, buffers and untrained weights included, in the type they have.

    Source: accelerate, commands/estimate.py, `estimate_training_usage`, column "Training using Adam": in float32 the
    step takes 4 x the model; in half precision 2 x the model in float32, which is the same. Buffers are those that a
    trace finds on the GPU from before training.
    Limits: it knows neither batch nor sequence length, so no activations; nothing of the allocator and the context.
    """

    name = "accelerate"
    leaves_out = "activations, temporaries, allocator, workspaces, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        return RawEstimate(reserved_bytes=4 * (features.weight_bytes + features.buffer_bytes))
