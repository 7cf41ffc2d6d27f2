"""Margins with a stated coverage, from out-of-fold errors. Needs numpy.

Split-conformal, one-sided: of n errors and one new one, all in any order alike, the new one is above the k-th smallest
in at most (n + 1 - k) of n + 1 cases. So n rows support no more than n / (n + 1) of coverage.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cotenant.core.errors import UsageError
from cotenant.learn.datasets.feature_table import FeatureTable, Matrix
from cotenant.learn.models.cross_validation import cross_validate
from cotenant.learn.models.regressors import RESIDUAL_FLOOR_MIB

COVERAGE = 0.95
"""Coverage of the margins. The model card also lists 99 %: for CNNs fifteen outliers would decide it."""
_KINDS = {"mlp": "dense", "cnn": "conv", "transformer": "attention"}


def upper_quantile(errors: Matrix, coverage: float = COVERAGE) -> tuple[float, float]:
    """The error that a new one exceeds in at most 1 - `coverage` of cases, at least 0; and the coverage it reaches.

    With too few rows: the largest error, and the coverage that it supports.
    """
    count = len(errors)
    place = math.ceil((count + 1) * coverage)
    if place > count:
        return max(0.0, float(errors.max())), count / (count + 1)
    return max(0.0, float(np.sort(errors)[place - 1])), coverage


def relative_errors(table: FeatureTable, mib: Matrix) -> Matrix:
    """Known peaks minus predictions, relative to the simulated reserved bytes."""
    known = table.known
    return (table.peak_mib[known] - mib[known]) / (table.reserved_mib[known] + RESIDUAL_FLOOR_MIB)


def calibrate(tables: Sequence[FeatureTable], seed: int, *, folds: int = 5) -> dict[str, Mapping[str, Any]]:
    """`quantile`, `coverage` and `rows` by kind of network, for the margin of `hybrid`.

    Raises:
        UsageError: a family of networks is missing.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for table in tables:
        results = {
            result.model: result for result in cross_validate(table, ["simulation", "hybrid"], folds=folds, seed=seed)
        }
        kind = _KINDS[table.family]
        found[kind] = _calibration(table, results["hybrid"].prediction.mib)
        if kind == "conv":
            found["conv-uncorrected"] = _calibration(table, results["simulation"].prediction.mib)
    missing = set(_KINDS.values()) - set(found)
    if missing:
        raise UsageError(
            f"no rows to calibrate the margin of networks of kind {', '.join(sorted(missing))}",
            hint="give data of all three families",
        )
    return found


def _calibration(table: FeatureTable, mib: Matrix | None) -> Mapping[str, Any]:
    assert mib is not None
    errors = relative_errors(table, mib)
    quantile, coverage = upper_quantile(errors)
    return {
        "quantile": quantile,
        "coverage": coverage,
        "rows": len(errors),
        "median": float(np.median(errors)),
        "quantile_99": upper_quantile(errors, 0.99)[0],
    }
