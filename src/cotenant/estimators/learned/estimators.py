"""Estimators learned from published measurements; features are the layers of a network. Need numpy, not torch.

They were trained on one model of GPU, in one environment of 2024: its memory outside the allocator is subtracted, and
the context of the requested GPU is added. As shipped, none of them sees the optimizer, the precision or the order of
allocations; `hybrid` does.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from cotenant.core.estimate import Estimate
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.base import RawEstimate, TraceBasedEstimator
from cotenant.estimators.learned.network_features import (
    Network,
    byte_features,
    layer_sequence,
    network_in_training,
    paper_features,
    training_features,
)
from cotenant.estimators.learned.weights import (
    Weights,
    forest_predict,
    import_numpy,
    mlp_predict,
    scaled,
    sequence_vector,
    shipped,
    vector_of,
)
from cotenant.estimators.roofline import with_activity
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec

_MIN_BYTES = 2 * MiB
_TOP_CLASS_MIB = 40000
"""The paper has one class for more memory, and for jobs out of memory."""


class LearnedEstimator(TraceBasedEstimator):
    """The base of estimators that read the layers of a network."""

    leaves_out = "what its training data did not vary: optimizer, precision, GPU, library versions"

    def on(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> Estimate:
        return with_activity(super().on(recorded, features, gpu), recorded, gpu, features)

    def figures(self, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> RawEstimate:
        return self.figures_of(network_in_training(recorded, features), gpu)

    def of_network(self, network: Network, gpu: GpuSpec) -> Estimate:
        """The estimate of a network that was described, not traced.

        Raises:
            UsageError: there are no weights for its family, or numpy is missing.
        """
        return self.estimate_of(self.figures_of(network, gpu), gpu)

    def figures_of(self, network: Network, gpu: GpuSpec) -> RawEstimate:
        """The computation, from the network alone; raises as `of_network` does."""
        weights = shipped(self.name, network.family)
        found = self.features_of(network) | training_features(network)
        mib, open_ended = self.predict_mib(weights, network, found)
        warnings = []
        beyond = weights.beyond(found)
        if beyond:
            warnings.append(f"{self.name}: beyond what it was trained on: {', '.join(beyond[:3])}")
        if open_ended:
            warnings.append(f"{self.name}: in the class above {_TOP_CLASS_MIB} MiB; the estimate is its lower edge")
        reserved = round((mib - float(weights.meta["outside_mib"])) * MiB)
        return RawEstimate(
            reserved_bytes=max(reserved, _MIN_BYTES),
            context_bytes=gpu.context.typical_bytes,
            warnings=tuple(warnings),
            partial=open_ended,
        )

    @abstractmethod
    def features_of(self, network: Network) -> dict[str, float]:
        """The features that the model reads."""

    @abstractmethod
    def predict_mib(self, weights: Weights, network: Network, features: dict[str, float]) -> tuple[float, bool]:
        """MiB of device memory, and whether that is only a lower bound."""


class _Classes(LearnedEstimator):
    """Predicts a memory class; the estimate is its upper edge, as in the paper."""

    def features_of(self, network: Network) -> dict[str, float]:
        return paper_features(network)

    def predict_mib(self, weights: Weights, network: Network, features: dict[str, float]) -> tuple[float, bool]:
        logits = mlp_predict(weights, self._input(weights, network, features))
        width = int(weights.meta["class_mib"])
        edge = (int(weights.meta["classes"][int(logits.argmax())]) + 1) * width
        return float(min(edge, _TOP_CLASS_MIB)), edge > _TOP_CLASS_MIB

    def _input(self, weights: Weights, network: Network, features: dict[str, float]) -> Any:  # noqa: ARG002
        return scaled(weights, vector_of(weights, features), "total")


class MlpEnsembleEstimator(_Classes):
    """GPUMemNet's ensemble of small MLPs over counts of a network, re-implemented and trained without its leaks.

    Source: arXiv 2602.17817. Classes of 1000 MiB for MLPs, of 8000 MiB for CNNs and Transformers.
    """

    name = "gpumemnet-mlp"


class SequenceEnsembleEstimator(_Classes):
    """GPUMemNet's Transformer ensemble over the sequence of layers, with attention across the layers.

    Source: as `gpumemnet-mlp`.
    """

    name = "gpumemnet-sequence"

    def _input(self, weights: Weights, network: Network, features: dict[str, float]) -> Any:
        totals = super()._input(weights, network, features)
        return import_numpy().concatenate([totals, sequence_vector(weights, layer_sequence(network))])


class _Forest(LearnedEstimator):
    """Predicts bytes, by trees over the bytes of each kind of layer."""

    def features_of(self, network: Network) -> dict[str, float]:
        return byte_features(network)

    def predict_mib(self, weights: Weights, network: Network, features: dict[str, float]) -> tuple[float, bool]:  # noqa: ARG002
        return forest_predict(weights, vector_of(weights, features)), False


class ExtraTreesEstimator(_Forest):
    """Extremely randomized trees over bytes of weights and outputs by kind of layer."""

    name = "extra-trees"


class BoostingEstimator(_Forest):
    """Gradient boosting over the same bytes as `extra-trees`."""

    name = "boosting"


class SchedTuneEstimator(_Forest):
    """SchedTune's idea, re-implemented: a random forest over bytes of parameters, bytes of activations, batch size.

    Source: Albahar et al., "SchedTune: A Heterogeneity-Aware GPU Scheduler for Deep Learning", CCGrid 2022. Its forest
    was trained on 12 CNNs and several GPUs, and also reads the size of the input and columns of the GPU. This one is
    trained on the rows of GPUMemNet, all of one GPU, so these columns say nothing; the input is the batch size here.
    """

    name = "schedtune"
    leaves_out = "the order of layers, optimizer, precision, GPU: trained on one GPU and one optimizer"
