"""k-fold cross-validation: a fresh model for every fold, and no configuration in two folds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cotenant.core.errors import UsageError
from cotenant.learn.datasets.dataset_files import read_families
from cotenant.learn.datasets.dataset_row import DatasetRow
from cotenant.learn.datasets.feature_table import FeatureTable, table_of
from cotenant.learn.datasets.published import is_plain
from cotenant.learn.models.metrics import Prediction, Scores, score
from cotenant.learn.models.regressors import BASELINES, SIMULATED, Model, make_model

SplitBy = Literal["config", "shape"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldResult:
    """Scores of one model: over all rows, each predicted out of fold, and for each fold."""

    model: str
    overall: Scores
    folds: tuple[Scores, ...]
    prediction: Prediction


DEFAULT_MODELS = ("extra-trees-paper", "extra-trees", "boosting", "simulation", "hybrid")
"""Models that need no torch and take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Cross-validation of several models on the rows of one family.

    Attributes:
        skipped: models that could not run, and why.
    """

    table: FeatureTable
    results: tuple[FoldResult, ...]
    skipped: tuple[str, ...]
    folds: int
    by: SplitBy


def kfold_command(
    data: Sequence[Path],
    *,
    models: Sequence[str] = DEFAULT_MODELS,
    folds: int = 5,
    seed: int = 0,
    by: SplitBy = "config",
    plain: bool = False,
    workers: int = 1,
    on_fold: Callable[[str, int], None] = lambda _model, _fold: None,
) -> list[Validation]:
    """Cross-validate `models`, the majority class and a two-term line on each family of the data.

    `plain`: leave out residual and dense networks, as the paper does.

    Raises:
        DatasetError: the data cannot be read. UnknownName: no such model. UsageError: a library is missing.
    """
    found = []
    for name in models:
        make_model(name)
    for rows in read_families(data):
        table = table_of([row for row in rows if is_plain(row)] if plain else rows, workers=workers)
        skipped = [] if table.is_simulated else [name for name in models if name in SIMULATED]
        runnable = [name for name in models if name not in skipped]
        results = cross_validate(table, runnable, folds=folds, seed=seed, by=by, on_fold=on_fold)
        why = [f"{name}: some of these networks cannot be simulated" for name in skipped]
        found.append(Validation(table=table, results=tuple(results), skipped=tuple(why), folds=folds, by=by))
    return found


def configuration_key(row: DatasetRow) -> str:
    """The same for rows of the same job, so that no configuration is on both sides of a split."""
    shapes = [(layer.kind, layer.output_shape, layer.parameters) for layer in row.layers]
    settings = [row.extras.get(name) for name in ("activation", "last_batch", "heads", "input_shape")]
    return json.dumps([row.family, row.batch, row.group, shapes, settings])


def splits(
    rows: Sequence[DatasetRow], *, folds: int, seed: int, by: SplitBy = "config"
) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Indices of training and of test rows for each fold.

    By `config`, rows of one configuration stay together, and folds have equal size; by `shape`, each fold tests one
    architecture shape that it was not trained on, and `folds` is ignored.

    Raises:
        UsageError: too few configurations, or one shape only.
    """
    keys = [configuration_key(row) if by == "config" else row.group for row in rows]
    distinct = sorted(set(keys))
    wanted = folds if by == "config" else 2
    if len(distinct) < wanted or wanted < 2:
        raise UsageError(f"{len(distinct)} different by {by}, wanted {max(wanted, 2)} or more to split")
    if by == "config":
        random.Random(seed).shuffle(distinct)  # noqa: S311 - a split, no secret
        fold_of = {key: place % folds for place, key in enumerate(distinct)}
    else:
        fold_of = {key: place for place, key in enumerate(distinct)}
    numbers = np.array([fold_of[key] for key in keys])
    return [
        (np.flatnonzero(numbers != fold), np.flatnonzero(numbers == fold)) for fold in range(max(fold_of.values()) + 1)
    ]


def cross_validate(
    table: FeatureTable,
    models: Iterable[str],
    *,
    folds: int = 5,
    seed: int = 0,
    by: SplitBy = "config",
    make: Callable[[str], Model] = make_model,
    on_fold: Callable[[str, int], None] = lambda _model, _fold: None,
) -> list[FoldResult]:
    """Results of `models`, the baselines first."""
    parts = splits(table.rows, folds=folds, seed=seed, by=by)
    return [_validate(table, name, parts, seed, make, on_fold) for name in dict.fromkeys((*BASELINES, *models))]


def _validate(
    table: FeatureTable,
    name: str,
    parts: Sequence[tuple[NDArray[np.intp], NDArray[np.intp]]],
    seed: int,
    make: Callable[[str], Model],
    on_fold: Callable[[str, int], None],
) -> FoldResult:
    classes: NDArray[np.intp] = np.zeros(len(table), dtype=np.intp)
    mib = np.full(len(table), np.nan)
    scores = []
    for fold, (train, test) in enumerate(parts):
        on_fold(name, fold)
        model = make(name)
        model.fit(table.take(train), seed)
        found = model.predict(table.take(test))
        scores.append(score(table.take(test), found))
        classes[test] = found.classes
        if found.mib is not None:
            mib[test] = found.mib
    prediction = Prediction(classes=classes, mib=None if np.isnan(mib).any() else mib)
    return FoldResult(model=name, overall=score(table, prediction), folds=tuple(scores), prediction=prediction)
