"""Scores of predictions: by class, as published, and by bytes. Needs numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cotenant.learn.datasets.feature_table import FeatureTable, Matrix, classes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The prediction for each row: MiB and a class; `mib` is None for a classifier."""

    classes: NDArray[np.intp]
    mib: Matrix | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Of one model on one set of rows. Shares are ratios.

    Attributes:
        majority: accuracy of the most frequent class of these rows.
        macro_f1: mean over the classes that occur or are predicted.
        precision, recall, weighted_f1: means over the classes, weighted by their rows; recall is the accuracy, as in
            the tables of the thesis. Precision of a class that is never predicted is 0.
        below: predicted a lower class than the true one.
        confusion: true class by line, predicted by column.
        known: rows with a known peak, to which the errors in bytes refer; these are None for classes.
        mae_mib, p95_mib, mape: mean and 95th percentile of the absolute error, and the mean relative error.
        underestimated, underestimated_5_percent: share of rows predicted too low, and too low by more than 5 %.
    """

    rows: int
    accuracy: float
    majority: float
    macro_f1: float
    precision: float
    recall: float
    weighted_f1: float
    below: float
    confusion: NDArray[np.intp]
    known: int = 0
    mae_mib: float | None = None
    p95_mib: float | None = None
    mape: float | None = None
    underestimated: float | None = None
    underestimated_5_percent: float | None = None


def score(table: FeatureTable, prediction: Prediction) -> Scores:
    """Scores of a prediction for all rows of a table."""
    true, predicted = table.classes(), prediction.classes
    size = int(max(true.max(), predicted.max())) + 1
    confusion: NDArray[np.intp] = np.zeros((size, size), dtype=np.intp)
    np.add.at(confusion, (true, predicted), 1)
    by_class = {
        "rows": len(table),
        "accuracy": float((true == predicted).mean()),
        "majority": float(np.bincount(true).max() / len(true)),
        "macro_f1": macro_f1(confusion),
        **weighted(confusion),
        "below": float((predicted < true).mean()),
    }
    if prediction.mib is None:
        return Scores(confusion=confusion, **by_class)  # type: ignore[arg-type]
    known = table.known
    peak = table.peak_mib[known]
    error = prediction.mib[known] - peak
    return Scores(
        confusion=confusion,
        known=len(known),
        mae_mib=float(np.abs(error).mean()),
        p95_mib=float(np.percentile(np.abs(error), 95)),
        mape=float((np.abs(error) / peak).mean()),
        underestimated=float((error < 0).mean()),
        underestimated_5_percent=float((error < -0.05 * peak).mean()),
        **by_class,  # type: ignore[arg-type]
    )


def macro_f1(confusion: NDArray[np.intp]) -> float:
    """Mean F1 over the classes that occur or are predicted."""
    hits = np.diag(confusion).astype(float)
    total = confusion.sum(axis=0) + confusion.sum(axis=1)
    seen = total > 0
    return float((2 * hits[seen] / total[seen]).mean())


def weighted(confusion: NDArray[np.intp]) -> dict[str, float]:
    """`precision`, `recall` and `weighted_f1`, each class weighted by its share of the rows."""
    hits, rows, predicted = np.diag(confusion).astype(float), confusion.sum(axis=1), confusion.sum(axis=0)
    share = rows / rows.sum()
    return {
        "precision": float((share * hits / np.maximum(predicted, 1)).sum()),
        "recall": float((share * hits / np.maximum(rows, 1)).sum()),
        "weighted_f1": float((share * 2 * hits / np.maximum(rows + predicted, 1)).sum()),
    }


def by_bytes(table: FeatureTable, mib: Matrix, oom: NDArray[np.bool_] | None = None) -> Prediction:
    """A prediction of bytes, with the classes that follow from it."""
    none = np.zeros(len(table), dtype=bool) if oom is None else oom
    return Prediction(classes=classes_of(mib, none, table.class_mib), mib=mib)


def r2(true: Matrix, predicted: Matrix) -> float:
    """Share of the variance that is explained."""
    return float(1 - ((true - predicted) ** 2).sum() / ((true - true.mean()) ** 2).sum())
