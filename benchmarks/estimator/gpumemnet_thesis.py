"""Tables 5.1 to 5.7 and section 5.4.2 of the thesis behind GPUMemNet, on the same rows, with the same splits and honest
ones; a part of `benchmarks.estimator.gpumemnet`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

    from cotenant.learn.datasets.feature_table import FeatureTable
    from cotenant.learn.models.metrics import Scores

SPLIT = "70/20/10"
SEEDS = {"MLP": (0, 1, 2), "Transformer": (0,)}
"""Of the splits; the Transformer ensemble takes minutes for each."""
FOLDS = 3
"""As in the paper."""
MODELS = {"MLP": "gpumemnet-mlp-13", "Transformer": "gpumemnet-sequence-13"}
PAPER = {"MLP": "mlp", "Transformer": "transformer"}
PAPER_COMMIT = "f01eb05"
PAPER_CLASS_MIB = {"MLP": 1000, "CNN": 8000, "Transformer": 8000}
TITLES = (
    *("table", "rows", "estimator", "class MiB", "thesis", "paper", "ours, split"),
    *("folds", "precision", "F1", "thesis' precision, F1"),
)
FOUR = ("layers", "batch_size", "parameters", "activations")
"""Features of the thesis' regressors (5.4.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A line of a table of the thesis: a data set, one of its two estimators, the width of a class."""

    table: str
    dataset: str
    estimator: str
    class_mib: int
    accuracy: float
    precision: float
    f1: float


def published(folder: Path) -> list[Published]:
    """The lines of tables 5.3, 5.5 and 5.7."""
    found = []
    for table, file in (("5.3", "5_3_mlp"), ("5.5", "5_5_cnn"), ("5.7", "5_7_transformer")):
        with (folder / f"table_{file}_accuracy.csv").open(newline="", encoding="utf-8") as lines:
            for cells in csv.DictReader(lines):
                found.append(
                    Published(
                        table=table,
                        dataset=cells["dataset"],
                        estimator=cells["estimator"],
                        class_mib=1000 * int(cells["class_width_gib"]),
                        accuracy=float(cells["accuracy"]),
                        precision=float(cells["precision"]),
                        f1=float(cells["f1"]),
                    )
                )
    return found


def paper_accuracy(data: Path, dataset: str, estimator: str) -> float:
    """Mean accuracy of the folds that the paper's repository lists; it keeps older results, which do not count."""
    with (data / "kfold_results.csv").open(newline="", encoding="utf-8") as lines:
        found = [
            float(cells["accuracy"])
            for cells in csv.DictReader(lines)
            if (cells["dataset"], cells["estimator"], cells["commit"])
            == (dataset.lower(), PAPER[estimator], PAPER_COMMIT)
        ]
    return sum(found) / len(found)


def thesis(args: argparse.Namespace) -> list[str]:
    """The part: classes as in tables 5.3, 5.5 and 5.7, then the regressors of 5.4.2."""
    import torch

    torch.set_num_threads(1)
    lines = [
        "Thesis: one split of 70/20/10 (10 % tested). Ours: such splits, three of the MLP ensemble (mean and range),",
        f"one of the Transformer ensemble; then {FOLDS} folds by configuration; 13 networks. Paper: mean of its",
        f"{FOLDS} folds, seven networks, one model for all folds.",
        "Table 5.1 is of a set that is not published; of the CNN and Transformer rows 2,061 and 101 are at hand.",
        "",
        f"| {' | '.join(TITLES)} |",
        f"| --- | --- | --- {'| ---: ' * (len(TITLES) - 3)}|",
    ]
    rows = {}
    for line in published(args.data.parent / "thesis"):
        key = (line.dataset, line.class_mib)
        if key not in rows:
            rows[key] = _table(args, *key)
        name = f"thesis {line.table} {line.estimator} {line.class_mib}{' quick' if args.quick else ''}"
        lines.append(args.cache.get(name, partial(_class_line, args, line, rows[key])))
        print(lines[-1], file=sys.stderr, flush=True)
    lines += ["", "## Regressors (5.4.2)", "", *_regressors(args)]
    return lines


def _table(args: argparse.Namespace, dataset: str, class_mib: int) -> FeatureTable:
    from benchmarks.estimator.gpumemnet import QUICK_ROWS, TRAINING_SETS
    from cotenant.learn.datasets.feature_table import table_of
    from cotenant.learn.datasets.published import read_published

    file, source = TRAINING_SETS[dataset.lower()]
    rows = [row for row in read_published(args.data / file) if source in row.source]
    return table_of(rows[:QUICK_ROWS] if args.quick else rows, simulated=False, class_mib=class_mib)


def _class_line(args: argparse.Namespace, line: Published, table: FeatureTable) -> str:
    from benchmarks.estimator.gpumemnet import say
    from cotenant.learn.models.cross_validation import Split, cross_validate, validate_once

    model = MODELS[line.estimator]
    once: list[Scores] = []
    seeds = SEEDS[line.estimator]
    for seed in seeds[:1] if args.quick else seeds:
        say(f"{model}, table {line.table}, classes of {line.class_mib}", seed)
        once.append(validate_once(table, [model], Split.parse(SPLIT), seed=seed)[1][-1].overall)
    (*_, folded) = cross_validate(table, [model], folds=2 if args.quick else FOLDS, on_fold=say)
    accuracies = sorted(scores.accuracy for scores in once)
    split = f"{sum(accuracies) / len(accuracies):.2%}"
    if len(accuracies) > 1:
        split += f" ({accuracies[0]:.1%} to {accuracies[-1]:.1%})"
    paper = ""
    if line.class_mib == PAPER_CLASS_MIB[line.dataset]:
        paper = f"{paper_accuracy(args.data, line.dataset, line.estimator):.2%}"
    cells = [
        line.table,
        f"{line.dataset}, {len(table)}",
        line.estimator,
        f"{line.class_mib}",
        f"{line.accuracy:.2%}",
        paper,
        split,
        f"{folded.overall.accuracy:.2%}",
        f"{folded.overall.precision:.2%}",
        f"{folded.overall.weighted_f1:.4f}",
        f"{line.precision:.2%}, {line.f1:.4f}",
    ]
    return f"| {' | '.join(cells)} |"


def _regressors(args: argparse.Namespace) -> list[str]:
    """Errors and importances of tree regressors over four features, on the first public MLP set."""
    import numpy as np

    from benchmarks.estimator.gpumemnet import QUICK_ROWS
    from cotenant.core.units import MiB
    from cotenant.learn.datasets.published import read_published
    from cotenant.learn.models.cross_validation import splits
    from cotenant.learn.models.regressors import import_sklearn

    rows = [row for row in read_published(args.data / "mlp.csv") if "mlp_step1" in row.source and row.peak_bytes]
    rows = rows[:QUICK_ROWS] if args.quick else rows
    matrix = np.array([[len(row.layers), row.batch, row.parameters, row.activations] for row in rows], dtype=float)
    peaks = np.array([(row.peak_bytes or 0) / MiB for row in rows])
    sklearn = import_sklearn()
    makers: dict[str, Any] = {
        "ExtraTrees": sklearn.ExtraTreesRegressor,
        "RandomForest": sklearn.RandomForestRegressor,
        "HistGradientBoosting (for LightGBM, XGBoost)": sklearn.HistGradientBoostingRegressor,
    }
    lines = [
        f"Features: {', '.join(FOUR)}. {FOLDS} folds by configuration, {len(rows)} rows of MLP step 1. The thesis,",
        "on its own first set: ExtraTrees, then LightGBM, RandomForest, XGBoost; an error of 1.2 GB; importances",
        "0.015, 0.014, 0.699 and 0.271 for ExtraTrees.",
        "",
        f"| regressor | MAE MiB | largest MiB | {' | '.join(FOUR)} |",
        f"| --- | ---: | ---: {'| ---: ' * len(FOUR)}|",
    ]
    parts = splits(rows, folds=FOLDS, seed=0)
    for name, make in makers.items():
        errors: list[float] = []
        for training, test in parts:
            fitted = make(random_state=0).fit(matrix[training], peaks[training])
            errors += np.abs(fitted.predict(matrix[test]) - peaks[test]).tolist()
        fitted = make(random_state=0).fit(matrix, peaks)
        shares: Sequence[float] = getattr(fitted, "feature_importances_", ())
        cells = [f"{share:.3f}" for share in shares] or ["-"] * len(FOUR)
        lines.append(f"| {name} | {np.mean(errors):.1f} | {max(errors):.0f} | {' | '.join(cells)} |")
    return lines
