"""SM activity of a traced job alone on its GPU: a roofline over the kernels of a step, and an interval.

A kernel takes the longest of: its FLOPs at the rate of the SMs that it fills, its bytes at the bandwidth, a launch on
the GPU. A step takes the sum of that, or the time in which Python launches its kernels where that is longer, and more
while it waits for data, starts and evaluates. Activity is the time of all kernels, each times the part of the SMs that
it fills, as a part of the time of the step.

The expected value is the mean of the roofline, of what jobs of that memory do, and of the model learned from layers
where that knows the network: each misses other jobs (decision 0082). The interval reaches beyond the lowest and the
highest of them by what 90 % of the jobs of networks left out need on each side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cotenant.core.errors import UsageError
from cotenant.core.estimate import Estimate
from cotenant.core.trace import KernelGroup, MemoryTrace
from cotenant.estimators.learned.utilization import Utilization, is_like_training_gpu, utilization_of
from cotenant.estimators.trace_features import Features, features_of
from cotenant.gpu_specs import GpuSpec
from cotenant.scheduling.prediction.interference import expected_smact

SMS = 108
BANDWIDTH_BYTES_HZ = 1.555e12
PRODUCT_FLOPS_HZ = {"float16": 312e12, "bfloat16": 312e12, "float32": 78e12}
VECTOR_FLOPS_HZ = 19.5e12
"""Of an A100-40GB. Source: NVIDIA A100 datasheet; `float32` is half of TF32's rate, since convolutions use TF32 and
matrix products do not, unless the script allows it. `VECTOR_FLOPS_HZ` is for all other types."""

REACH_BELOW, REACH_ABOVE = 0.07, 0.10
"""How far the interval reaches beyond its parts: on networks left out, 90 % of the jobs are inside on each side."""

STEEPNESS = 4.0
"""The longer of two times, smoothed: launches and kernels overlap, but not where the step waits for a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was fitted to 140 jobs on an A100-40GB: 40 of AEGIS, 100 random networks of GPUMemNet (decision 0082).

    Attributes:
        product_efficiency, bandwidth_efficiency: of the published rates.
        host_s: in which Python launches one kernel; `launch_s`: the shortest kernel.
        waiting: time of a step as a multiple of what kernels and launches take.
        flops_per_sm, results_per_sm: with so much work for each SM a kernel fills all.
    """

    product_efficiency: float = 0.78
    bandwidth_efficiency: float = 0.69
    host_s: float = 8.1e-6
    launch_s: float = 4.9e-6
    waiting: float = 1.35
    flops_per_sm: float = 40.8e6
    results_per_sm: float = 1e3


FITTED = Machine()


def roofline_smact(kernels: Sequence[KernelGroup], machine: Machine = FITTED) -> float | None:
    """SM activity (0..1) of a job with these kernels in a step; None without kernels."""
    busy_s = active_s = host_s = 0.0
    for kind, dtype, count, flops, nbytes, results in kernels:
        is_product = kind == "product"
        work = flops / machine.flops_per_sm if is_product else results / machine.results_per_sm
        filled = min(1.0, max(1.0, work) / SMS)
        rate = machine.product_efficiency * PRODUCT_FLOPS_HZ.get(dtype, VECTOR_FLOPS_HZ)
        seconds = max(
            flops / (rate * filled if is_product else rate),
            nbytes / (machine.bandwidth_efficiency * BANDWIDTH_BYTES_HZ),
            machine.launch_s,
        )
        busy_s += count * seconds
        active_s += count * seconds * filled
        host_s += count * machine.host_s
    if not busy_s:
        return None
    step_s = math.hypot(busy_s ** (STEEPNESS / 2), host_s ** (STEEPNESS / 2)) ** (2 / STEEPNESS)
    return min(1.0, float(active_s / (machine.waiting * step_s)))


def with_activity(
    estimate: Estimate, recorded: MemoryTrace, gpu: GpuSpec, features: Features | None = None
) -> Estimate:
    """`estimate` with the expected SM activity of the job alone on `gpu`, and its interval.

    Unchanged on GPUs other than that of the data, and where neither the kernels nor the layers are known: compiled
    code, the null GPU. `features`: of the trace, if they are known.
    """
    if not is_like_training_gpu(gpu):
        return estimate
    learned = _learned(recorded, features, gpu)
    is_eager = recorded.header.backend == "trace" and not recorded.header.compiled
    roofline = roofline_smact(recorded.header.kernels) if is_eager else None
    found = [smact for smact in (roofline, None if learned is None else learned.smact) if smact is not None]
    if not found:
        return estimate
    found.append(expected_smact(estimate.bound_bytes))
    return replace(
        estimate,
        smact=round(sum(found) / len(found), 4),
        smact_low=round(max(0.0, min(found) - REACH_BELOW), 4),
        smact_high=round(min(1.0, max(found) + REACH_ABOVE), 4),
        smocc=estimate.smocc if learned is None else learned.smocc,
    )


def _learned(recorded: MemoryTrace, features: Features | None, gpu: GpuSpec) -> Utilization | None:
    """What the model learned from layers says; None where it knows no such network, or numpy is missing."""
    try:
        return utilization_of(recorded, features or features_of(recorded), gpu)
    except UsageError:
        return None
