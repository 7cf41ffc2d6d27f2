"""SMACT and SMOCC of a job alone on its GPU, predicted from its layers. Learned; numpy, no torch.

Source of the measurements: GPUMemNet's training runs on an A100 (DCGM, mean over the run of samples above zero). Small
jobs there wait for Python to prepare the next batch, so the values depend on that machine as much as on the network: on
a faster GPU, or with a faster host, activity differs by an unknown factor. It is good enough to rank jobs of one
server: on 30 real CNNs on such a GPU, SMACT was off by 0.05 on average. DRAMA was not published, so it is not
estimated.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.core.errors import UsageError
from cotenant.core.trace import MemoryTrace
from cotenant.estimators.learned.network_features import Network, network_in_training, training_features, work_features
from cotenant.estimators.learned.weights import Weights, forest_predict, shipped, vector_of
from cotenant.estimators.trace_features import Features
from cotenant.gpu_specs import GpuSpec

TRAINED_ON = "A100-40GB"
_LIKE_IT = "A100-"
"""GPUs with the same number of SMs; a MIG instance has fewer, and was not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Ratios 0..1 of a job alone on the GPU `gpu`; `warnings`: where it is outside the training data."""

    smact: float
    smocc: float
    gpu: str
    warnings: tuple[str, ...] = ()


def utilization_of(recorded: MemoryTrace, features: Features, gpu: GpuSpec) -> Utilization:
    """Utilization of a traced script on `gpu`; raises as `utilization_on` does, and for a trace without layers."""
    return utilization_on(network_in_training(recorded, features), gpu)


def utilization_on(network: Network, gpu: GpuSpec) -> Utilization:
    """Utilization of a network on `gpu`, which must be like that of the data.

    Activity is not scaled to others by SMs and clocks. No row of another GPU has SM activity; the run times of 36 jobs
    on an RTX 2080 Ti, a GPU with half the SMs, show what such a scaling misses: the median error of the time that it
    predicts is 30 %, since the hosts differ more than the GPUs for jobs that wait for their data. Decision 0066.

    Raises:
        UsageError: the GPU is another one, or a MIG instance, or as of `utilization_of_network`.
    """
    if not is_like_training_gpu(gpu):
        raise UsageError(
            f"SM activity was learned on an {TRAINED_ON}, and no measurement says how that of a {gpu.name} differs",
            hint="let the daemon observe the job on it, or ask for an A100",
        )
    return utilization_of_network(network)


def is_like_training_gpu(gpu: GpuSpec) -> bool:
    """Whether `gpu` is like that of the data, and no MIG instance."""
    return gpu.name.startswith(_LIKE_IT) and ":" not in gpu.name


def utilization_of_network(network: Network) -> Utilization:
    """Utilization of a network with its batch size.

    Raises:
        UsageError: the network attends. Of seven such jobs of AEGIS, the median of the other six is off by 0.14 in the
            mean, by 0.51 for LLaMA with batches of 1 (decision 0066).
    """
    if network.family == "transformer":
        raise UsageError(
            "SM activity of networks that attend is known of seven jobs only, from 0.30 to 0.89: too few for a rule",
            hint="let the daemon observe the job, or run it once",
        )
    found = work_features(network) | training_features(network)
    smact, smocc = (shipped(name, network.family) for name in ("smact", "smocc"))
    beyond = smact.beyond(found)
    warning = f"utilization: beyond what it was learned from: {', '.join(beyond[:3])}" if beyond else ""
    return Utilization(
        smact=_ratio(smact, found), smocc=_ratio(smocc, found), gpu=TRAINED_ON, warnings=(warning,) if warning else ()
    )


def _ratio(weights: Weights, features: dict[str, float]) -> float:
    return min(1.0, max(0.0, forest_predict(weights, vector_of(weights, features))))
