"""Published estimators that count the bytes of live tensors, without an allocator.

One file for each rule of counting; a plug-in of the registry.
"""

from __future__ import annotations

from cotenant.core.trace import MemoryTrace
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.trace_features import Features, first_backward_end, live_peak
from cotenant.gpu_specs import GpuSpec

_GRANULE_BYTES = 512


class FakeTensorEstimator(TraceBasedEstimator):
    """Peak bytes of live storages over the first forward and backward pass.

    Source: the script of PyTorch's developer forum (2024) that GPUMemNet and CARMA use. There the model is on the GPU
    before the fake mode begins, so that weights of convolutions and norms are not seen; here they are counted.
    Limits: no optimizer step, no rounding to blocks and segments, no workspaces, no context.
    """

    name = "faketensor"
    leaves_out = "optimizer step, rounding, allocator, workspaces, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        peak, breakdown = live_peak(recorded.events[: first_backward_end(recorded.events)])
        return RawEstimate(reserved_bytes=peak, allocated_bytes=peak, breakdown_bytes=breakdown)


class MemTrackerEstimator(TraceBasedEstimator):
    """Peak bytes of live tensors over whole steps, optimizer included, each rounded up to 512 bytes.

    Source: torch/distributed/_tools/mem_tracker.py (PyTorch 2.4 and later, pull request 124688), `MemTracker`. It
    follows storages by weak references under a dispatch mode, as our trace does; so its maximum is derived from the
    trace, and MemTracker itself is not run. A test compares both.
    Limits: tensors only: no segments and fragmentation, no workspaces, no context.
    """

    name = "memtracker"
    leaves_out = "segments and fragmentation, workspaces, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        peak, breakdown = live_peak(recorded.events, granule_bytes=_GRANULE_BYTES)
        return RawEstimate(reserved_bytes=peak, allocated_bytes=peak, breakdown_bytes=breakdown)
