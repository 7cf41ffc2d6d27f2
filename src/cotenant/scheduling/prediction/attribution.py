"""What each of several jobs on a GPU does to it, where only what all do together is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from cotenant.scheduling.prediction.interference import GpuActivity, PriorInterference

SMACT_STD = 0.05
"""How far the summed SM activity that is predicted of known jobs is from what is read, as a ratio of all SMs."""

EXPECTED_LOG_STD = 0.4
"""How far, in logs, a job's SM activity is from what its memory need makes expect (0.08 on average of 0.45)."""

FACTORS = tuple(math.exp(0.1 * step) for step in range(-25, 13))

Load = tuple[float, int]
"""SM activity alone, and memory in bytes, 0 where not known."""


@lru_cache(maxsize=20_000)
def attribute_activity(
    known: Sequence[Load], expected: Sequence[Load], measured: float, gpu_memory_bytes: int | None = None
) -> float:
    """By what the SM activities that were expected are to be multiplied so that the GPU shows what was measured.

    The likeliest factor, if jobs slow each other down as `PriorInterference` predicts and expectations are off by
    `EXPECTED_LOG_STD`. A GPU with all SMs active shows little of each job's part: there expectations stand.
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
