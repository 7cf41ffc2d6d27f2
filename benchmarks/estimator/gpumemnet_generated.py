"""The thesis' estimators, learned from sets as large as the published ones, drawn from its ranges and simulated.

A part of `benchmarks.estimator.gpumemnet`. It reads the folders `mlp`, `mlp-deep`, `cnn` and `transformer` below
`--runs`, which the commands on its page make; a folder may be absent.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.estimator.gpumemnet_thesis import SPLIT, published
from cotenant.core.units import MiB
from cotenant.learn.data_collection.run_log import FILE, read_records

if TYPE_CHECKING:
    import argparse

    from cotenant.learn.datasets.dataset_row import DatasetRow
    from cotenant.learn.datasets.feature_table import FeatureTable
    from cotenant.learn.models.metrics import Scores

MODELS = ("extra-trees", "gpumemnet-mlp", "gpumemnet-mlp-13", "gpumemnet-sequence", "gpumemnet-sequence-13")
MEASURED = {
    "mlp": ("mlp-thesis", "mlp.csv", "mlp_step2"),
    "mlp-deep": ("mlp-thesis-deep", "mlp.csv", "mlp_step2"),
    "cnn": ("cnn-thesis", "cnn_step1.csv", ""),
    "transformer": ("transformer-thesis", "transformer_sample.csv", ""),
}
"""Folder of a set below `--runs` -> the ranges that it is drawn from, the measured rows beside it and their source."""
TITLES = (
    *("model", "rows of training", "test rows, accuracy", "precision", "F1"),
    *("measured rows, accuracy", "precision", "F1"),
)
NAMES = {
    "gpumemnet-mlp": "MLP, 7",
    "gpumemnet-mlp-13": "MLP, 13",
    "gpumemnet-sequence": "Transformer, 7",
    "gpumemnet-sequence-13": "Transformer, 13",
}


def generated(args: argparse.Namespace) -> list[str]:
    """The part: each set, its scores on rows left out, and on the measured rows of its family."""
    import torch

    torch.set_num_threads(1)
    families = [family for family in MEASURED if (args.runs / family / FILE).is_file()]
    lines = [
        "Configurations are drawn from the ranges of tables 5.2, 5.4 and 5.6 (`mlp-deep`: of the first MLP set,",
        "section 5.4.1, whose bounds are not published) and labeled without a GPU, by the allocator's simulation of",
        "their layers:",
        "",
        "```console",
        *(line for family in families for line in _commands(family, args.runs / family)),
        f"$ python -m benchmarks.estimator.gpumemnet --part generated --runs RUNS --models {' '.join(args.models)}",
        "```",
        "",
        "What a label is worth: the same simulation of measured rows, with one constant for the memory outside the",
        "allocator, which differs by software (here that of the measured rows). Then models: one split of",
        f"{SPLIT}, seed 0, of the generated rows; the same fitted models, applied to the measured rows.",
        "The thesis tested on 10 % of its own measured rows. MLP and Transformer are its ensembles, of 13 networks,",
        "and the paper's, of 7.",
    ]
    for family in families:
        lines += ["", f"## {family}", "", *_family(args, family, args.runs / family)]
    return lines


def _commands(family: str, folder: Path) -> Iterator[str]:
    count = len({record.config_id for record in read_records(folder)})
    yield f"$ cotenant learn generate {MEASURED[family][0]} --count {count} --seed 0 --out {family}.txt"
    yield f"$ cotenant learn run {family}.txt --simulate --out RUNS/{family}"


def _family(args: argparse.Namespace, family: str, folder: Path) -> list[str]:
    from benchmarks.estimator.gpumemnet import QUICK_ROWS
    from cotenant.learn.datasets.feature_table import table_of
    from cotenant.learn.datasets.published import read_published
    from cotenant.learn.models.regressors import BASELINES

    _, file, source = MEASURED[family]
    measured = [row for row in read_published(args.data / file) if source in row.source]
    drawn = labeled_rows(folder)
    if args.quick:
        measured, drawn = measured[:QUICK_ROWS], drawn[:QUICK_ROWS]
    compared = table_of(measured, workers=args.workers)
    outside_mib, agreement = _agreement(compared)
    statuses = Counter(row.status for row in drawn)
    counted = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    table = table_of([moved(row, outside_mib) for row in drawn], simulated=False)
    lines = [
        f"{len(drawn)} generated rows ({counted}), {len(compared)} measured ones. {agreement}",
        "",
        f"| {' | '.join(TITLES)} |",
        f"| --- {'| ---: ' * 7}|",
    ]
    for model in (*BASELINES, *args.models):
        name = f"generated {family} {model}{' quick' if args.quick else ''}"
        lines.append(args.cache.get(name, partial(_scored, table, compared, model)))
        print(lines[-1], file=sys.stderr, flush=True)
    for title, *scores in _published(args.data.parent / "thesis", family, table.class_mib):
        cells = (f"{scores[0]:.1%}", f"{scores[1]:.1%}", f"{scores[2]:.3f}")
        lines.append(f"| {title} | | {' | '.join(cells)} | | | |")
    return lines


def _published(folder: Path, family: str, class_mib: int) -> Iterator[tuple[str, float, float, float]]:
    """Title, accuracy, precision and F1 of the thesis' own estimators for a set."""
    if family == "mlp-deep":
        with (folder / "table_5_1_first_classification.csv").open(newline="", encoding="utf-8") as lines:
            first = next(csv.DictReader(lines))
        yield "thesis, table 5.1", float(first["accuracy"]), float(first["precision"]), float(first["f1"])
    for line in published(folder):
        if line.dataset.lower() == family and line.class_mib == class_mib:
            yield f"thesis, table {line.table}, {line.estimator}", line.accuracy, line.precision, line.f1


def labeled_rows(folder: Path) -> list[DatasetRow]:
    """The networks of a folder of `learn run` that were labeled; those that cannot be simulated are left out."""
    from cotenant.learn.datasets.clean import row_of

    newest = {record.config_id: record for record in read_records(folder)}
    return [row for record in newest.values() if (row := row_of(record)).status in ("ok", "oom")]


def moved(row: DatasetRow, outside_mib: float) -> DatasetRow:
    """The row with `outside_mib` outside the allocator in place of its own context."""
    if row.peak_bytes is None or row.context_bytes is None:
        return row
    outside_bytes = round(outside_mib * MiB)
    return replace(row, peak_bytes=row.peak_bytes - row.context_bytes + outside_bytes, context_bytes=outside_bytes)


def _agreement(table: FeatureTable) -> tuple[float, str]:
    """The constant of the measured rows' environment, and a sentence on the simulation of those rows."""
    import numpy as np

    from cotenant.learn.models.regressors import SimulationModel, outside_mib

    model = SimulationModel()
    model.fit(table, 0)
    prediction, known = model.predict(table), table.known
    assert prediction.mib is not None
    errors = np.abs(prediction.mib[known] / table.peak_mib[known] - 1)
    same = float((prediction.classes == table.classes()).mean())
    constant = outside_mib(table)
    return constant, (
        f"The simulation of the measured rows, with {constant:.0f} MiB outside the allocator: {errors.mean():.2%} off "
        f"in the mean, {np.median(errors):.2%} in the median, {errors.max():.1%} at most ({len(known)} rows that "
        f"trained); {same:.1%} of all rows in their class of {table.class_mib} MiB."
    )


def _scored(table: FeatureTable, measured: FeatureTable, name: str) -> str:
    """The line of a model: its scores on the generated rows of the test, and on the measured ones."""
    from benchmarks.estimator.gpumemnet import say
    from cotenant.learn.models.cross_validation import Split, split_once
    from cotenant.learn.models.metrics import score
    from cotenant.learn.models.regressors import make_model

    say(name, 0)
    split = Split.parse(SPLIT)
    training, test = split_once(table, split, seed=0)
    model = make_model(name, validation=split.validation_share)
    model.fit(training, 0)
    title = f"{NAMES[name]} (`{name}`)" if name in NAMES else name
    scores = [*_three(score(test, model.predict(test))), *_three(score(measured, model.predict(measured)))]
    return f"| {' | '.join([title, str(len(training)), *scores])} |"


def _three(scores: Scores) -> Sequence[str]:
    return f"{scores.accuracy:.1%}", f"{scores.precision:.1%}", f"{scores.weighted_f1:.3f}"
