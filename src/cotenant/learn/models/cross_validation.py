"""k-fold cross-validation, or one split: a fresh model for every fold, and no configuration on both sides."""

from __future__ import annotations

import json
import random
import re
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
class Split:
    """Shares of one split: what is learned from, what a neural network ends its training by, and what is tested.

    Models that have no use for the second part learn from it, too.
    """

    training: float
    validation: float
    test: float

    @classmethod
    def parse(cls, text: str) -> Split:
        """A split such as `70/20/10`, in percent.

        Raises:
            UsageError: the text is not three numbers that are 100 together, the first and the last above 0.
        """
        parts = text.split("/")
        shares = [float(part) / 100 for part in parts if re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,6})?", part)]
        if len(parts) != 3 or len(shares) != 3 or abs(sum(shares) - 1) > 1e-6 or 0 in (shares[0], shares[2]):
            raise UsageError(f"a split is {text!r}, wanted TRAINING/VALIDATION/TEST in percent, such as 70/20/10")
        return cls(training=shares[0], validation=shares[1], test=shares[2])

    @property
    def validation_share(self) -> float:
        """Share of the rows that are not tested by which a neural network ends its training."""
        return self.validation / (self.training + self.validation)

    def __str__(self) -> str:
        return "/".join(f"{100 * share:g}" for share in (self.training, self.validation, self.test))


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
        table: the rows that were predicted.
        skipped: models that could not run, and why.
        split: takes the place of folds; None: none.
    """

    table: FeatureTable
    results: tuple[FoldResult, ...]
    skipped: tuple[str, ...]
    folds: int
    by: SplitBy
    split: Split | None = None

    def __str__(self) -> str:
        if self.split is not None:
            return f"one split of {self.split}"
        return "by architecture shape" if self.by == "shape" else f"{self.folds} folds"


def kfold_command(
    data: Sequence[Path],
    *,
    models: Sequence[str] = DEFAULT_MODELS,
    folds: int = 5,
    seed: int = 0,
    by: SplitBy = "config",
    split: Split | None = None,
    plain: bool = False,
    workers: int = 1,
    class_mib: int | None = None,
    on_fold: Callable[[str, int], None] = lambda _model, _fold: None,
) -> list[Validation]:
    """Cross-validate `models`, the majority class and a two-term line on each family of the data.

    `split`: one split in place of folds; `plain`: leave out residual and dense networks, as the paper does;
    `class_mib`: width of the memory classes, by default as published.

    Raises:
        DatasetError: the data cannot be read. UnknownName: no such model. UsageError: a library is missing.
    """
    found = []
    for name in models:
        make_model(name)
    for rows in read_families(data):
        taken = [row for row in rows if is_plain(row)] if plain else rows
        table = table_of(taken, workers=workers, class_mib=class_mib)
        skipped = [] if table.is_simulated else [name for name in models if name in SIMULATED]
        runnable = [name for name in models if name not in skipped]
        if split is None:
            results = cross_validate(table, runnable, folds=folds, seed=seed, by=by, on_fold=on_fold)
        else:
            table, results = validate_once(table, runnable, split, seed=seed, on_fold=on_fold)
        why = tuple(f"{name}: some of these networks cannot be simulated" for name in skipped)
        validation = Validation(table=table, results=tuple(results), skipped=why, folds=folds, by=by, split=split)
        found.append(validation)
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


def split_once(table: FeatureTable, split: Split, *, seed: int) -> tuple[FeatureTable, FeatureTable]:
    """The rows of training and validation, and the rows of the test; no configuration is in both.

    Raises:
        UsageError: too few configurations.
    """
    keys = [configuration_key(row) for row in table.rows]
    distinct = sorted(set(keys))
    random.Random(seed).shuffle(distinct)  # noqa: S311 - a split, no secret
    tested = set(distinct[: round(split.test * len(distinct))])
    is_test = np.array([key in tested for key in keys])
    if not is_test.any() or is_test.all():
        raise UsageError(f"{len(distinct)} different configurations, too few for a split of {split}")
    return table.take(np.flatnonzero(~is_test)), table.take(np.flatnonzero(is_test))


def validate_once(
    table: FeatureTable,
    models: Iterable[str],
    split: Split,
    *,
    seed: int = 0,
    make: Callable[..., Model] = make_model,
    on_fold: Callable[[str, int], None] = lambda _model, _fold: None,
) -> tuple[FeatureTable, list[FoldResult]]:
    """The test rows of one split, and the results of `models` for them, the baselines first.

    Raises:
        UsageError: too few configurations.
    """
    training, test = split_once(table, split, seed=seed)
    results = []
    for name in dict.fromkeys((*BASELINES, *models)):
        on_fold(name, 0)
        model = make(name, validation=split.validation_share)
        model.fit(training, seed)
        prediction = model.predict(test)
        scores = score(test, prediction)
        results.append(FoldResult(model=name, overall=scores, folds=(scores,), prediction=prediction))
    return test, results


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
