"""Trains models on all rows of a data set, writes weights with a model card, and tests weights."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import cotenant
from cotenant.core.errors import UnknownName, UsageError
from cotenant.core.units import MiB
from cotenant.estimators.layer_kinds import LAYER_KINDS
from cotenant.estimators.learned.hybrid import FLOOR_BYTES
from cotenant.estimators.learned.network_features import (
    Network,
    byte_features,
    layer_sequence,
    paper_features,
    training_features,
)
from cotenant.estimators.learned.weights import (
    Weights,
    forest_predict,
    mlp_predict,
    read_weights,
    scaled,
    sequence_vector,
    vector_of,
    write_weights,
)
from cotenant.learn.datasets.dataset_files import read_families
from cotenant.learn.datasets.feature_table import FeatureTable, Matrix, network_of_row, table_of
from cotenant.learn.models import export
from cotenant.learn.models.conformal import calibrate
from cotenant.learn.models.cross_validation import FoldResult, cross_validate
from cotenant.learn.models.metrics import Prediction, Scores, by_bytes, score
from cotenant.learn.models.model_card import card_text
from cotenant.learn.models.regressors import (
    SCHEDTUNE_FEATURES,
    conv_matrix,
    environment_mib,
    import_sklearn,
    outside_mib,
    residual_regressor,
    schedtune_matrix,
    schedtune_regressor,
)

FOREST_TREES = 40
FOREST_LEAVES = 400
BOOSTING_TREES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A file of weights and its card. `validated`: the model and the baselines, cross-validated on the same rows."""

    weights: Path
    card: Path
    rows: int
    validated: tuple[FoldResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """Scores of a file of weights on a data set."""

    model: str
    family: str
    scores: Scores


def train_command(
    data: Sequence[Path],
    *,
    model: str,
    out: Path,
    seed: int = 0,
    folds: int = 3,
    workers: int = 1,
    class_mib: int | None = None,
) -> Trained:
    """Train `model` (one of `TRAINED`) on all rows of `data` and write `out/MODEL-FAMILY.npz` and its card.

    The scores on the card come from cross-validation with `folds` folds. `hybrid` takes data of several families: the
    residual is learned from CNNs, the margins from all.

    Raises:
        UnknownName: no such model. UsageError: a library is missing. DatasetError: the data cannot be read.
    """
    if model not in TRAINED:
        raise UnknownName("model", model, TRAINED)
    tables = [table_of(rows, workers=workers, class_mib=class_mib) for rows in read_families(data)]
    return train(tables, model=model, out=out, seed=seed, folds=folds)


def train(tables: Sequence[FeatureTable], *, model: str, out: Path, seed: int = 0, folds: int = 3) -> Trained:
    """`train_command`, from tables."""
    if model != "hybrid" and len(tables) != 1:
        raise UsageError(f"`{model}` is trained on one family at a time, found {len(tables)}")
    out.mkdir(parents=True, exist_ok=True)
    family = "all" if model == "hybrid" else tables[0].family
    validated = [result for table in tables for result in cross_validate(table, [model], folds=folds, seed=seed)]
    weights = _fit_hybrid(tables, seed) if model == "hybrid" else TRAINED[model](tables[0], seed)
    written = write_weights(out / f"{model}-{family}", weights)
    card = written.with_suffix(".md")
    card.write_text(card_text(weights, tables, validated, versions(), size_bytes=written.stat().st_size), "utf-8")
    return Trained(weights=written, card=card, rows=sum(map(len, tables)), validated=tuple(validated))


def test_command(weights: Path, data: Sequence[Path]) -> Tested:
    """Scores of a file of weights on the rows of its family in `data`; numpy only.

    Raises:
        UsageError: the file is not a model, or `hybrid`, which needs traces and is scored by cross-validation.
        DatasetError: the data cannot be read, or has no such rows.
    """
    loaded = read_weights(weights)
    model, family = str(loaded.meta["model"]), str(loaded.meta["family"])
    if model not in TRAINED or model == "hybrid":
        raise UsageError(
            f"`{weights}` is a `{model}`, which is not tested alone", hint="use `cotenant learn cross-validate`"
        )
    rows = [row for rows in read_families(data) for row in rows if row.family == family]
    table = table_of(rows, simulated=False, class_mib=loaded.meta.get("class_mib"))
    return Tested(model=model, family=family, scores=score(table, predict_bytes(loaded, table)))


def predict_bytes(weights: Weights, table: FeatureTable) -> Prediction:
    """Predictions of the weights for each row."""
    networks = [network_of_row(row) for row in table.rows]
    if "classes" not in weights.meta:
        return by_bytes(
            table,
            np.array(
                [
                    forest_predict(weights, vector_of(weights, _features_with_training(byte_features, net)))
                    for net in networks
                ]
            ),
        )
    found = []
    for network in networks:
        vector = scaled(weights, vector_of(weights, _features_with_training(paper_features, network)), "total")
        if "encoders" in weights.meta:
            vector = np.concatenate([vector, sequence_vector(weights, layer_sequence(network))])
        found.append(weights.meta["classes"][int(mlp_predict(weights, vector).argmax())])
    return Prediction(classes=np.array(found, dtype=np.intp))


def _features_with_training(features: Callable[[Network], dict[str, float]], network: Network) -> dict[str, float]:
    return features(network) | training_features(network)


def versions() -> dict[str, str]:
    """Versions of the libraries, for the card."""
    found = {"cotenant": cotenant.__version__, "python": platform.python_version()}
    for name in ("numpy", "scikit-learn", "torch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# -- each kind --------------------------------------------------------------------------------------------------------


def _meta(model: str, table: FeatureTable, seed: int) -> dict[str, object]:
    return {
        "model": model,
        "family": table.family,
        "outside_mib": environment_mib(table),
        "rows": len(table),
        "seed": seed,
        "trained_on": sorted({row.source for row in table.rows}),
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
    }


def _fit_forest(model: str, make: Callable[[int], Any]) -> Callable[[FeatureTable, int], Weights]:
    def fit(table: FeatureTable, seed: int) -> Weights:
        known, matrix = table.known, table.features["bytes"]
        regressor = make(seed).fit(matrix[known].astype(np.float32), table.peak_mib[known])
        meta = {**_meta(model, table, seed), **export.range_of(table.names["bytes"], matrix[known])}
        return export.forest(regressor, meta)

    return fit


def _extra_trees(seed: int) -> Any:
    return import_sklearn().ExtraTreesRegressor(FOREST_TREES, max_leaf_nodes=FOREST_LEAVES, random_state=seed)


def _boosting(seed: int) -> Any:
    return import_sklearn().HistGradientBoostingRegressor(
        max_iter=BOOSTING_TREES, learning_rate=0.08, max_leaf_nodes=31, min_samples_leaf=10, random_state=seed
    )


def _fit_schedtune(table: FeatureTable, seed: int) -> Weights:
    """A random forest over the features of SchedTune that a list of layers has."""
    known, matrix = table.known, schedtune_matrix(table)
    regressor = schedtune_regressor(seed).fit(matrix[known].astype(np.float32), table.peak_mib[known])
    meta = {**_meta("schedtune", table, seed), **export.range_of(SCHEDTUNE_FEATURES, matrix[known])}
    return export.forest(regressor, meta)


def _fit_ensemble(table: FeatureTable, seed: int, *, sequence: bool) -> Weights:
    from cotenant.learn.models import ensembles

    model = ensembles.SequenceEnsemble() if sequence else ensembles.MlpEnsemble()
    model.fit(table, seed)
    return export_ensemble(model, table, seed)


def export_ensemble(model: Any, table: FeatureTable, seed: int) -> Weights:
    """A fitted ensemble of neural networks as weights; `table`: its training data."""
    from cotenant.learn.models import ensembles

    meta: dict[str, object] = {
        **_meta(model.name, table, seed),
        **export.range_of(table.names["paper"], table.features["paper"]),
        "class_mib": table.class_mib,
        "classes": model.classes.tolist(),
    }
    arrays: dict[str, Matrix] = {"total_mean": model.scale.mean, "total_deviation": model.scale.deviation}
    if not hasattr(model, "layer_scale"):
        found = export.perceptrons(model.net, meta)
        return Weights(found.meta, {**found.arrays, **arrays})
    meta |= {
        "kinds": len(LAYER_KINDS),
        "encoders": [layers for _, layers in ensembles.ENCODERS],
        "pooled_by": ensembles.POOLED_BY,
    }
    arrays |= {
        "layer_mean": model.layer_scale.scale.mean,
        "layer_deviation": model.layer_scale.scale.deviation,
        **export.encoders(model.net),
    }
    found = export.perceptrons(model.net.perceptrons, meta)
    return Weights(found.meta, {**found.arrays, **arrays})


def _fit_hybrid(tables: Sequence[FeatureTable], seed: int) -> Weights:
    """Fit the residual to the CNNs, and the margins to out-of-fold errors of every family."""
    convs = [table for table in tables if table.family == "cnn"]
    if len(convs) != 1:
        raise UsageError("`hybrid` needs exactly one data set of CNNs for its residual")
    table = convs[0]
    known = table.known
    reserved = table.reserved_mib[known]
    left = table.peak_mib[known] - outside_mib(table) - reserved
    matrix = conv_matrix(table)[known]
    regressor = residual_regressor(seed).fit(matrix.astype(np.float32), left / (reserved + FLOOR_BYTES / MiB))
    names = table.names["simulation"][-matrix.shape[1] :]
    meta = {**_meta("hybrid", table, seed), **export.range_of(names, matrix), "family": "all"}
    meta["calibration"] = calibrate(tables, seed)
    meta["trained_on"] = sorted({row.source for source in tables for row in source.rows})
    return export.forest(regressor, meta)


TRAINED: Mapping[str, Callable[[FeatureTable, int], Weights]] = {
    "extra-trees": _fit_forest("extra-trees", _extra_trees),
    "boosting": _fit_forest("boosting", _boosting),
    "schedtune": _fit_schedtune,
    "gpumemnet-mlp": lambda table, seed: _fit_ensemble(table, seed, sequence=False),
    "gpumemnet-sequence": lambda table, seed: _fit_ensemble(table, seed, sequence=True),
    "hybrid": lambda table, seed: _fit_hybrid([table], seed),
}
"""Models that can be shipped; the other models are baselines for comparison."""
