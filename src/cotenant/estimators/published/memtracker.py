"""What `torch.distributed._tools.MemTracker` tells as its maximum."""

from __future__ import annotations

from cotenant.core.trace import MemoryTrace
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.trace_features import Features, live_peak
from cotenant.gpu_specs import GpuSpec

_GRANULE_BYTES = 512


class MemTrackerEstimator(TraceBasedEstimator):
    """Most bytes of live tensors over whole steps, optimizer included, each rounded up to 512 bytes.

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
