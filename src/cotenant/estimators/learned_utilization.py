"""How busy a job alone keeps the GPU, by its layers: SMACT and SMOCC. Learned; numpy, no torch.

Source of the measurements: GPUMemNet's training runs on an A100 (DCGM, mean over the run of samples above zero). Small
jobs there wait for Python to prepare the next batch, so the number is of that machine as much as of the network: on a
faster card, or with a faster host, the same job is less or more busy, and nothing here knows by how much. For ranking
jobs of one server it will do; for a bound on another, measure. DRAMA was not published, so it is not estimated.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.core.errors import UsageError
from cotenant.core.trace import MemoryTrace
from cotenant.estimators.features import Features
from cotenant.estimators.learned_features import Network, network_of, work_features
from cotenant.estimators.learned_weights import Weights, forest_says, shipped, vector_of

TRAINED_ON = "A100-40GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Ratios 0..1 of a job alone on the GPU `gpu`; `warnings`: where it is unlike what this was learned from."""

    smact: float
    smocc: float
    gpu: str
    warnings: tuple[str, ...] = ()


def utilization_of(recorded: MemoryTrace, features: Features) -> Utilization:
    """Of a traced script; raises as `utilization_of_network` does, and where the trace tells no layers."""
    return utilization_of_network(network_of(recorded, features.batch))


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
    found = work_features(network)
    smact, smocc = (shipped(name, network.family) for name in ("smact", "smocc"))
    beyond = smact.beyond(found)
    told = f"utilization: beyond what it was learned from: {', '.join(beyond[:3])}" if beyond else ""
    return Utilization(
        smact=_ratio(smact, found), smocc=_ratio(smocc, found), gpu=TRAINED_ON, warnings=(told,) if told else ()
    )


def _ratio(weights: Weights, features: dict[str, float]) -> float:
    return min(1.0, max(0.0, forest_says(weights, vector_of(weights, features))))
