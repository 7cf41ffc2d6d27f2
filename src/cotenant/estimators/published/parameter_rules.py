"""Published rules that count parameters: accelerate, DeepSpeed, Horus and sixteen bytes each."""

from __future__ import annotations

from cotenant.core.trace import MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec

BYTES_PER_PARAMETER = 16
HORUS_CONSTANT_BYTES = 800 * MiB


class Params16Estimator(TraceBasedEstimator):
    """Sixteen bytes a trained parameter: weight, gradient and the two states of Adam in fp32.

    Mixed precision has 16 bytes of model states as well (Rajbhandari et al., ZeRO, SC 2020, section 3.1).
    Limits: everything else, activations first.
    """

    name = "params16"
    leaves_out = "activations, temporaries, allocator, workspaces, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        return RawEstimate(reserved_bytes=BYTES_PER_PARAMETER * features.parameters)


class AccelerateEstimator(TraceBasedEstimator):
    """Four times the bytes of the model in its own dtype, buffers and frozen weights included.

    Source: accelerate, commands/estimate.py, `estimate_training_usage`, column "Training using Adam": in float32 the
    step takes 4 x the model; in half precision 2 x the model in float32, which is the same. Buffers are the storages
    that are on the GPU before training.
    Limits: neither batch nor sequence length enters it, so no activations; no allocator and no context.
    """

    name = "accelerate"
    leaves_out = "activations, temporaries, allocator, workspaces, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        return RawEstimate(reserved_bytes=4 * (features.weight_bytes + features.buffer_bytes))


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

    Limits: model states only, for half precision and Adam; DeepSpeed's issue 4527 reports 0.49 GB for a job of 21 GB.
    """

    name = "deepspeed-zero2"
    leaves_out = "activations, temporaries, buckets, allocator, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        return RawEstimate(reserved_bytes=zero2_bytes(features.parameters, features.devices))


class Zero3Estimator(TraceBasedEstimator):
    """`zero3_bytes` of the trained parameters, over the GPUs that the script sees.

    A trace has parameters one by one: the largest is taken as the largest layer, without its bias.
    Limits: as of ZeRO-2.
    """

    name = "deepspeed-zero3"
    leaves_out = "activations, temporaries, prefetching, allocator, context"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        largest = max(features.parameter_bytes, default=0) // features.item_bytes
        return RawEstimate(reserved_bytes=zero3_bytes(features.parameters, largest, features.devices))


class HorusEstimator(TraceBasedEstimator):
    """A constant, the weights, and for each sample the outputs of all layers and the weights again.

    Source: Yeung et al., IEEE TPDS 33(1), 2022, as GPUMemNet and CARMA compute it. The formula was read off what they
    published (`paper_results.csv`): with P the bytes of the parameters, the estimates of six CNNs at batches 32 and 128
    lie on lines that begin at P + 800.000 MiB and rise by A + P a sample; A is the sum of the outputs of the innermost
    layers, poolings and dropouts aside. The published estimates of MLPs have no constant.
    Limits: gradients are counted once a sample, so that it is far too high where parameters are many; no optimizer
    state, no allocator. An in-place layer has no output in a trace, but is in their sum: of MobileNetV2,
    which has none, this gives the published estimate to 0.01 %, of VGG-16 and ResNet-50 at batch 32 it is 6 and 17 %
    below.
    """

    name = "horus"
    leaves_out = "optimizer state, allocator, workspaces; counts gradients once a sample"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        outputs = sum(layer.output_bytes for layer in features.layers if layer.leaf)
        batch = features.batch or 1
        unknown = "horus: the batch size is unknown; gradients are counted for one sample"
        return RawEstimate(
            reserved_bytes=HORUS_CONSTANT_BYTES + features.weight_bytes * (1 + batch) + outputs,
            warnings=() if features.batch else (unknown,),
            partial=features.batch is None,
        )
