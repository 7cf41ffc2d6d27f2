"""Bytes of fake tensors, as the scripts around PyTorch's FakeTensorMode count them."""

from __future__ import annotations

from cotenant.core.trace import MemoryTrace
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.trace_features import Features, first_backward_end, live_peak
from cotenant.gpu_specs import GpuSpec


class FakeTensorEstimator(TraceBasedEstimator):
    """Most bytes of live storages over the first forward and backward pass.

    Source: the script of PyTorch's developer forum (2024) that GPUMemNet and CARMA use. There the model is on the GPU
    before the fake mode begins, so that weights of convolutions and norms are not seen; here they are counted.
    Limits: no optimizer step, no rounding to blocks and segments, no workspaces, no context.
    """

    name = "faketensor"
    leaves_out = "optimizer step, rounding, allocator, workspaces, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        peak, breakdown = live_peak(recorded.events[: first_backward_end(recorded.events)])
        return RawEstimate(reserved_bytes=peak, allocated_bytes=peak, breakdown_bytes=breakdown)
