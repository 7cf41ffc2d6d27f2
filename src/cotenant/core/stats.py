"""Means and quantiles of a few numbers, without numpy.

A module of its own: rooms that must not import numpy share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The arithmetic mean of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def quantile(values: Iterable[float], q: float) -> float:
    """The value that a share `q`, 0..1, of `values` does not exceed, linear between neighbors; NaN of nothing.

    As `numpy.quantile` by default: method 7 of Hyndman and Fan (1996).
    """
    ordered = sorted(values)
    if not ordered:
        return math.nan
    position = q * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle ones; NaN of nothing."""
    return quantile(values, 0.5)
