"""What DeepSpeed's own estimators tell of the model states of ZeRO, without offloading."""

from __future__ import annotations

from cotenant.core.trace import MemoryTrace
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec


def zero2_bytes(parameters: int, gpus: int) -> int:
    """Bytes on each GPU: 4 + 16 / N for a parameter.

    Source: DeepSpeed, documentation page "Memory Requirements", `estimate_zero2_model_states_mem_needs_all_cold`.
    """
    return 4 * parameters + 16 * parameters // gpus


def zero3_bytes(parameters: int, largest_layer_parameters: int, gpus: int) -> int:
    """Bytes on each GPU: 18 / N for a parameter, and 4 for each of the largest layer, which is gathered.

    Source: DeepSpeed, documentation page "Memory Requirements", `estimate_zero3_model_states_mem_needs_all_cold`.
    """
    return 4 * largest_layer_parameters + 18 * parameters // gpus


class Zero2Estimator(TraceBasedEstimator):
    """`zero2_bytes` of the trained parameters, over the GPUs that the script sees.

    Limits: model states only, for half precision and Adam; DeepSpeed's issue 4527 tells 0.49 GB for a job of 21 GB.
    """

    name = "deepspeed-zero2"
    leaves_out = "activations, temporaries, buckets, allocator, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        return RawEstimate(reserved_bytes=zero2_bytes(features.parameters, features.devices))


class Zero3Estimator(TraceBasedEstimator):
    """`zero3_bytes` of the trained parameters, over the GPUs that the script sees.

    A trace knows parameters one by one: the largest stands for the largest layer, so a bias is left out.
    Limits: as of ZeRO-2.
    """

    name = "deepspeed-zero3"
    leaves_out = "activations, temporaries, prefetching, allocator, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        largest = max(features.parameter_bytes, default=0) // features.item_bytes
        return RawEstimate(reserved_bytes=zero3_bytes(features.parameters, largest, features.devices))
