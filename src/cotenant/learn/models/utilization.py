"""Trains and cross-validates models of GPU activity. Needs numpy and scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from cotenant.core.errors import DatasetError
from cotenant.estimators.learned.network_features import work_features
from cotenant.estimators.learned.weights import Weights, write_weights
from cotenant.learn.datasets.dataset_files import read_families
from cotenant.learn.datasets.dataset_row import DatasetRow
from cotenant.learn.datasets.feature_table import Matrix, network_of_row, training_of
from cotenant.learn.models import export
from cotenant.learn.models.cross_validation import SplitBy, splits
from cotenant.learn.models.metrics import r2
from cotenant.learn.models.regressors import import_sklearn

Measure: TypeAlias = Literal["smact", "smocc", "drama"]
MEASURES: tuple[Measure, ...] = ("smact", "smocc", "drama")
MIN_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilized:
    """Cross-validated scores of one measure. `constant_mae`: mean absolute error of the median."""

    family: str
    measure: Measure
    rows: int
    r2: float
    mae: float
    constant_mae: float
    weights: Path | None = None


def utilization_command(
    data: Sequence[Path], *, out: Path | None = None, folds: int = 5, seed: int = 0, by: SplitBy = "config"
) -> list[Utilized]:
    """Cross-validate a model of every measure that 100 rows of a family have; with `out`, train and write it.

    Raises:
        DatasetError: the data cannot be read, or too few rows were measured. UsageError: scikit-learn is missing.
    """
    found = []
    for rows in read_families(data):
        for measure in MEASURES:
            measured = [row for row in rows if row.layers and row.status == "ok" and getattr(row, measure) is not None]
            if len(measured) >= MIN_ROWS:
                found.append(_one(measured, measure, out, folds=folds, seed=seed, by=by))
    if not found:
        raise DatasetError(f"no family has a measure of utilization in {MIN_ROWS} rows")
    return found


def _one(
    rows: Sequence[DatasetRow], measure: Measure, out: Path | None, *, folds: int, seed: int, by: SplitBy
) -> Utilized:
    networks = [network_of_row(row) for row in rows]
    lines = [work_features(network) | more for network, more in zip(networks, training_of(networks), strict=True)]
    matrix: Matrix = np.array([list(line.values()) for line in lines], dtype=np.float32)
    true: Matrix = np.array([getattr(row, measure) for row in rows])
    predicted: Matrix = np.zeros(len(rows))
    for train, test in splits(rows, folds=folds, seed=seed, by=by):
        predicted[test] = _regressor(seed).fit(matrix[train], true[train]).predict(matrix[test])
    predicted = np.clip(predicted, 0, 1)
    scores = {"r2": r2(true, predicted), "mae": float(np.abs(predicted - true).mean())}
    written = None
    if out is not None:
        meta: dict[str, object] = {
            "model": measure,
            "family": rows[0].family,
            "rows": len(rows),
            "seed": seed,
            **scores,
        }
        meta |= {"trained_on": sorted({row.source for row in rows}), **export.range_of(tuple(lines[0]), matrix)}
        weights = export.forest(_regressor(seed).fit(matrix, true), meta)
        out.mkdir(parents=True, exist_ok=True)
        written = write_weights(out / f"{measure}-{rows[0].family}", weights)
        written.with_suffix(".md").write_text(_card(weights, folds), "utf-8")
    return Utilized(
        family=rows[0].family,
        measure=measure,
        rows=len(rows),
        constant_mae=float(np.abs(true - np.median(true)).mean()),
        weights=written,
        **scores,
    )


def _regressor(seed: int) -> Any:
    return import_sklearn().HistGradientBoostingRegressor(
        max_iter=200, learning_rate=0.08, max_leaf_nodes=31, min_samples_leaf=10, random_state=seed
    )


def _card(weights: Weights, folds: int) -> str:
    meta = weights.meta
    return f"""# {meta["model"]}, {meta["family"]}

Mean {meta["model"].upper()} of a job alone, by gradient boosting over bytes and operations of its layers.

- Data: {", ".join(f"`{name}`" for name in meta["trained_on"])}, {meta["rows"]} rows; CC BY 4.0 (GPUMemNet, arXiv
  2602.17817).
- {folds}-fold, by configuration: R2 {meta["r2"]:.4f}, mean absolute error {meta["mae"]:.4f}.
- Measured by DCGM on one A100-SXM4-40GB, from the start of the process, without samples of 0. A job that waits for its
  input pipeline is as busy as that host allows: the data have no other GPU and no other host.
"""
