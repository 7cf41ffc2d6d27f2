"""Attributes the measured SM activity of a GPU to the jobs that share it.

A module of its own: pure numbers, tested against the interference model they invert.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from cotenant.scheduling.prediction.interference import GpuActivity, PriorInterference

SMACT_STD = 0.05
"""Standard deviation of measured minus predicted total SM activity for known jobs (1 = all SMs)."""

EXPECTED_LOG_STD = 0.4
"""Standard deviation of log SM activity around its expectation from memory demand (0.08 on average of 0.45)."""

FACTORS = tuple(math.exp(0.1 * step) for step in range(-25, 13))

Load = tuple[float, int]
"""Solo SM activity, and memory in bytes, 0 if not known."""


@lru_cache(maxsize=20_000)
def attribute_activity(
    known: Sequence[Load], expected: Sequence[Load], measured: float, gpu_memory_bytes: int | None = None
) -> float:
    """The factor on the `expected` SM activities that best explains the `measured` activity of the GPU.

    Maximum a posteriori, with slowdowns from `PriorInterference` and a prior of `EXPECTED_LOG_STD` on the factor. A GPU
    with all SMs active says little about the parts of the jobs, so the factor stays near 1.
    """
    return min(
        FACTORS, key=lambda factor: _negative_log_likelihood(factor, known, expected, measured, gpu_memory_bytes)
    )


def _negative_log_likelihood(
    factor: float, known: Sequence[Load], expected: Sequence[Load], measured: float, gpu_memory_bytes: int | None
) -> float:
    loads = [*known, *((min(1.0, factor * smact), size) for smact, size in expected)]
    slowdowns = PriorInterference().slowdowns(
        [GpuActivity(None, smact, memory_bytes=size, gpu_memory_bytes=gpu_memory_bytes) for smact, size in loads]
    )
    shown = sum([smact / slowdown for (smact, _), slowdown in zip(loads, slowdowns, strict=True)])
    return ((shown - measured) / SMACT_STD) ** 2 + (math.log(factor) / EXPECTED_LOG_STD) ** 2
