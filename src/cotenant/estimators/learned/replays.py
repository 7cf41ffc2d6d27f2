"""The replays that the hybrid estimator starts from."""

from __future__ import annotations

from cotenant.allocator import ReplayResult
from cotenant.core.trace import MemoryTrace
from cotenant.estimators.cudnn.workspaces import none
from cotenant.estimators.learned.network_features import Replays
from cotenant.estimators.replay_input import ReplayInput, make_replay_input


def replays_of(trace: MemoryTrace, scene: ReplayInput, result: ReplayResult | None = None) -> Replays:
    """Peaks of `trace` on the GPU of `scene`, with and without workspaces; `result`: the former, if it is there."""
    full = scene.replay() if result is None else result
    convolves = any(op.kind.startswith("conv") for op in trace.ops)
    bare = make_replay_input(trace, scene.gpu, scene.stack, conv=none).replay() if convolves else full
    return Replays(
        reserved_bytes=full.peak_reserved_bytes,
        allocated_bytes=full.peak_allocated_bytes,
        bare_reserved_bytes=bare.peak_reserved_bytes,
        bare_allocated_bytes=bare.peak_allocated_bytes,
    )
