"""How busy a job alone keeps the GPU, by its layers: SMACT and SMOCC. Learned; numpy, no torch.

Source of the measurements: GPUMemNet's training runs on an A100 (DCGM, mean over the run of samples above zero). Small
jobs there wait for Python to prepare the next batch, so the number is of that machine as much as of the network: on a
faster card, or with a faster host, the same job is less or more busy, and nothing here knows by how much. For ranking
jobs of one server it will do: of 30 real CNNs on such a GPU, SMACT was off by 0.05 on average. DRAMA was not published,
so it is not estimated.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cotenant.core.errors import UsageError
from cotenant.core.estimate import Estimate
from cotenant.core.trace import MemoryTrace
from cotenant.estimators.learned.network_features import Network, network_in_training, training_features, work_features
from cotenant.estimators.learned.weights import Weights, forest_predict, shipped, vector_of
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec

TRAINED_ON = "A100-40GB"
_LIKE_IT = "A100-"
"""Profiles with as many SMs; of a MIG instance, which has fewer, nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Ratios 0..1 of a job alone on the GPU `gpu`; `warnings`: where it is unlike what this was learned from."""

    smact: float
    smocc: float
    gpu: str
    warnings: tuple[str, ...] = ()


def utilization_of(recorded: MemoryTrace, features: Features) -> Utilization:
    """Of a traced script; raises as `utilization_of_network` does, and where the trace tells no layers."""
    return utilization_of_network(network_in_training(recorded, features))


def with_utilization(estimate: Estimate, recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> Estimate:
    """`estimate` with SMACT and SMOCC, where they can be told: on GPUs like that of the data, for what does not attend.

    Policies then expect them of a job that nobody has seen yet. Networks beyond the ranges of the data are told too:
    nearly all real ones are, and memory alone says less of them (`benchmarks/estimator/gpumemnet.py --part busy`).
    """
    if not gpu.name.startswith(_LIKE_IT) or ":" in gpu.name:
        return estimate
    try:
        found = utilization_of(recorded, features)
    except UsageError:
        return estimate
    return replace(estimate, smact=found.smact, smocc=found.smocc)


def utilization_of_network(network: Network) -> Utilization:
    """Of a network and its batch.

    Raises:
        UsageError: nothing was measured of this family of networks (Transformers).
    """
    if network.family == "transformer":
        raise UsageError(
            "the utilization of Transformers was not measured in what this was learned from",
            hint="let the daemon observe the job, or run it once",
        )
    found = work_features(network) | training_features(network)
    smact, smocc = (shipped(name, network.family) for name in ("smact", "smocc"))
    beyond = smact.beyond(found)
    told = f"utilization: beyond what it was learned from: {', '.join(beyond[:3])}" if beyond else ""
    return Utilization(
        smact=_ratio(smact, found), smocc=_ratio(smocc, found), gpu=TRAINED_ON, warnings=(told,) if told else ()
    )


def _ratio(weights: Weights, features: dict[str, float]) -> float:
    return min(1.0, max(0.0, forest_predict(weights, vector_of(weights, features))))
