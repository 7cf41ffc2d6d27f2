"""The formula of Horus."""

from __future__ import annotations

from cotenant.core.trace import MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec

CONSTANT_BYTES = 800 * MiB


class HorusEstimator(TraceBasedEstimator):
    """A constant, the weights, and for each sample the outputs of all layers and the weights again.

    Source: Yeung et al., IEEE TPDS 33(1), 2022, as GPUMemNet and CARMA compute it. The formula was read off what they
    published (`paper_results.csv`): with P the bytes of the parameters, the estimates of six CNNs at batches 32 and 128
    lie on lines that begin at P + 800.000 MiB and rise by A + P a sample; A is the sum of the outputs of the innermost
    layers, poolings and dropouts aside. The published estimates of MLPs have no constant.
    Limits: gradients are counted once a sample, so that it is far too high where parameters are many; no optimizer
    state, no allocator. A layer that works in place leaves no output in a trace, but is in their sum: of MobileNetV2,
    which has none, this gives the published estimate to 0.01 %, of VGG-16 and ResNet-50 at batch 32 it is 6 and 17 %
    below.
    """

    name = "horus"
    leaves_out = "optimizer state, allocator, workspaces; counts gradients once a sample"

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:  # noqa: ARG002
        outputs = sum(layer.output_bytes for layer in features.layers if layer.leaf)
        batch = features.batch or 1
        unknown = "horus: the batch size was not seen; gradients are counted for one sample"
        return RawEstimate(
            reserved_bytes=CONSTANT_BYTES + features.weight_bytes * (1 + batch) + outputs,
            warnings=() if features.batch else (unknown,),
            partial=features.batch is None,
        )
