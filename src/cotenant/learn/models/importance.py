"""Which features a model needs: what is lost when one of them is shuffled among the rows that it was not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from cotenant.core.errors import UsageError
from cotenant.learn.datasets.dataset_files import read_families
from cotenant.learn.datasets.feature_table import FeatureSet, FeatureTable, table_of
from cotenant.learn.models.cross_validation import Split, split_once
from cotenant.learn.models.metrics import Scores, score
from cotenant.learn.models.regressors import BASELINES, SIMULATED, Model, make_model

LAYERS = "layers, in order"
"""The feature of a model that reads a network layer by layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """One feature of a model.

    Attributes:
        accuracy_decrease: accuracy on the test rows less that with the feature shuffled, mean over the repeats.
        mae_increase_mib: by how much the mean absolute error grows then; None for a classifier.
        impurity: the share that the trees themselves give to the feature (mean decrease of impurity, on the rows of
            training, where features of many values are favored); None for models without.
    """

    feature: str
    accuracy_decrease: float
    mae_increase_mib: float | None
    impurity: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelImportances:
    """The features of one model on one family, the most important first; `scores`: with nothing shuffled."""

    model: str
    family: str
    scores: Scores
    features: tuple[Importance, ...]


def importances_command(
    data: Sequence[Path],
    *,
    model: str,
    split: Split,
    seed: int = 0,
    repeats: int = 5,
    class_mib: int | None = None,
) -> list[ModelImportances]:
    """The importances of each family of the data, by one split of its rows.

    Raises:
        DatasetError: the data cannot be read. UnknownName: no such model.
        UsageError: the model reads no features, or a library is missing.
    """
    if model in BASELINES or model in SIMULATED:
        raise UsageError(f"`{model}` has no features to shuffle", hint="choose trees or an ensemble of GPUMemNet")
    make_model(model)
    tables = [table_of(rows, simulated=False, class_mib=class_mib) for rows in read_families(data)]
    return [importances(table, model, split, seed=seed, repeats=repeats) for table in tables]


def importances(table: FeatureTable, name: str, split: Split, *, seed: int = 0, repeats: int = 5) -> ModelImportances:
    """Train `name` on one part of the rows, and shuffle its features in the other."""
    training, test = split_once(table, split, seed=seed)
    model = make_model(name, validation=split.validation_share)
    model.fit(training, seed)
    whole = score(test, model.predict(test))
    chance = np.random.default_rng(seed)
    impurities = _impurities(model, test)
    found = []
    for place, (feature, shuffled) in enumerate(_shuffled(model, test, chance, repeats)):
        scores = [score(rows, model.predict(rows)) for rows in shuffled]
        errors = [one.mae_mib for one in scores if one.mae_mib is not None]
        found.append(
            Importance(
                feature=feature,
                accuracy_decrease=whole.accuracy - fmean(one.accuracy for one in scores),
                mae_increase_mib=None if whole.mae_mib is None else fmean(errors) - whole.mae_mib,
                impurity=None if impurities is None else float(impurities[place]),
            )
        )
    found.sort(key=lambda line: (-(line.mae_increase_mib or 0.0), -line.accuracy_decrease))
    return ModelImportances(model=name, family=table.family, scores=whole, features=tuple(found))


def _shuffled(
    model: Model, test: FeatureTable, chance: np.random.Generator, repeats: int
) -> Iterator[tuple[str, list[FeatureTable]]]:
    """Each feature, and the test rows with it shuffled, `repeats` times."""
    chosen: FeatureSet = getattr(model, "features", "paper")
    matrix = test.features[chosen]
    for column, name in enumerate(test.names[chosen]):
        tables = []
        for _ in range(repeats):
            changed = matrix.copy()
            changed[:, column] = chance.permutation(changed[:, column])
            tables.append(replace(test, features={**test.features, chosen: changed}))
        yield name, tables
    if hasattr(model, "layer_scale"):
        orders = [chance.permutation(len(test)) for _ in range(repeats)]
        yield LAYERS, [replace(test, sequences=tuple(test.sequences[i] for i in order)) for order in orders]


def _impurities(model: Model, table: FeatureTable) -> NDArray[np.float64] | None:
    """The trees' own importances; None for other models, and for trees that read only some of the features."""
    fitted = getattr(model, "regressor", None) or getattr(model, "classifier", None)
    found: NDArray[np.float64] | None = getattr(fitted, "feature_importances_", None)
    names = table.names[getattr(model, "features", "paper")]
    return found if found is not None and len(found) == len(names) else None
