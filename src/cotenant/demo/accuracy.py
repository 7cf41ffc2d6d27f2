"""Errors of estimates against measurements.

A module of its own: it is arithmetic, tested without running the demo.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotenant.core import stats


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Absolute relative errors (ratios) of `count` estimates.

    Attributes:
        low: number of estimates below the measured value.
    """

    count: int
    median: float
    mean: float
    p95: float
    worst: float
    low: int


def signed_error(estimated_bytes: float, measured_bytes: float) -> float:
    """(estimated - measured) / measured; above 0 if the estimate is too high."""
    return (estimated_bytes - measured_bytes) / measured_bytes


def summarize_errors(signed: Sequence[float]) -> ErrorSummary | None:
    """Summary of signed errors; None if there are none."""
    if not signed:
        return None
    sizes = [abs(error) for error in signed]
    return ErrorSummary(
        count=len(sizes),
        median=stats.median(sizes),
        mean=stats.mean(sizes),
        p95=stats.quantile(sizes, 0.95),
        worst=max(sizes),
        low=sum(error < 0 for error in signed),
    )
