"""Ratios of paired measurements, with a confidence interval.

A module of its own: arithmetic, tested without running a study.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cotenant.core import stats

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Quantile 0.975 of Student's t for 1 to 30 degrees of freedom (NIST/SEMATECH e-Handbook, 1.3.6.7.2)."""
NORMAL_975 = 1.960


class Ratio(NamedTuple):
    """A mean ratio; `low` and `high` bound it with 95 % confidence, and are None for fewer than two pairs."""

    mean: float
    low: float | None
    high: float | None
    pairs: int


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> Ratio | None:
    """Geometric mean of `measured / baseline` over pairs (measured, baseline); None without a pair.

    The interval is Student's t on the logarithms: ratios of times are skewed, their logarithms much less.
    """
    logs = [math.log(measured / baseline) for measured, baseline in pairs if measured > 0 and baseline > 0]
    if not logs:
        return None
    mean = stats.mean(logs)
    if len(logs) == 1:
        return Ratio(math.exp(mean), None, None, 1)
    freedom = len(logs) - 1
    variance = math.fsum((value - mean) ** 2 for value in logs) / freedom
    quantile = T_975[freedom - 1] if freedom <= len(T_975) else NORMAL_975
    half = quantile * math.sqrt(variance / len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))
