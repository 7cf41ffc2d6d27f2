"""The thesis' estimators, learned from sets as large as the published ones, drawn from its ranges and simulated.

A part of `benchmarks.estimator.gpumemnet`. It reads the folders `mlp`, `cnn` and `transformer` below `--runs`, which
the commands on its page make.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.estimator.gpumemnet_thesis import SPLIT, published
from cotenant.core.units import MiB
from cotenant.learn.data_collection.run_log import FILE, read_records

if TYPE_CHECKING:
    import argparse

    from cotenant.learn.datasets.dataset_row import DatasetRow
    from cotenant.learn.datasets.feature_table import FeatureTable
    from cotenant.learn.models.metrics import Scores

COUNT = 5100
MODELS = ("extra-trees", "gpumemnet-mlp-13", "gpumemnet-sequence-13")
MEASURED = {
    "mlp": ("mlp.csv", "mlp_step2"),
    "cnn": ("cnn_step1.csv", ""),
    "transformer": ("transformer_sample.csv", ""),
}
TITLES = (
    *("model", "rows of training", "test rows, accuracy", "precision", "F1"),
    *("measured rows, accuracy", "precision", "F1"),
)
NAMES = {"gpumemnet-mlp-13": "MLP", "gpumemnet-sequence-13": "Transformer"}


def generated(args: argparse.Namespace) -> list[str]:
    """The part: each set, its scores on rows left out, and on the measured rows of its family."""
    import torch

    torch.set_num_threads(1)
    lines = [
        "Configurations are drawn from the ranges of tables 5.2, 5.4 and 5.6 and labeled without a GPU, by the",
        "allocator's simulation of their layers:",
        "",
        "```console",
        f"$ cotenant learn generate FAMILY-thesis --count {COUNT} --seed 0 --out FAMILY.txt",
        "$ cotenant learn run FAMILY.txt --simulate --out RUNS/FAMILY",
        f"$ python -m benchmarks.estimator.gpumemnet --part generated --runs RUNS --models {' '.join(args.models)}",
        "```",
        "",
        "What a label is worth: the same simulation of measured rows, with one constant for the memory outside the",
        "allocator, which differs by software (here that of the measured rows). Then models: one split of",
        f"{SPLIT}, seed 0, of the generated rows; the same fitted models, asked about the measured rows.",
        "The thesis tested on 10 % of its own measured rows.",
    ]
    for family in MEASURED:
        folder = args.runs / family
        if (folder / FILE).is_file():
            lines += ["", f"## {family}", "", *_family(args, family, folder)]
    return lines


def _family(args: argparse.Namespace, family: str, folder: Path) -> list[str]:
    from benchmarks.estimator.gpumemnet import QUICK_ROWS
    from cotenant.learn.datasets.feature_table import table_of
    from cotenant.learn.datasets.published import read_published

    file, source = MEASURED[family]
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
    lines += _scored(table, compared, args.models)
    for line in published(args.data.parent / "thesis"):
        if line.dataset.lower() == family and line.class_mib == table.class_mib:
            cells = (f"{line.accuracy:.1%}", f"{line.precision:.1%}", f"{line.f1:.3f}")
            lines.append(f"| thesis, table {line.table}, {line.estimator} | | {' | '.join(cells)} | | | |")
    return lines


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


def _scored(table: FeatureTable, measured: FeatureTable, models: Sequence[str]) -> list[str]:
    from benchmarks.estimator.gpumemnet import say
    from cotenant.learn.models.cross_validation import Split, validate_once
    from cotenant.learn.models.metrics import score
    from cotenant.learn.models.regressors import make_model

    fitted: dict[str, Any] = {}

    def make(name: str, **settings: Any) -> Any:
        fitted[name] = make_model(name, **settings)
        return fitted[name]

    test, results = validate_once(table, models, Split.parse(SPLIT), make=make, on_fold=say)
    lines = []
    for result in results:
        on_measured = score(measured, fitted[result.model].predict(measured))
        name = NAMES.get(result.model)
        title = result.model if name is None else f"{name} (`{result.model}`)"
        cells = [str(len(table) - len(test)), *_three(result.overall), *_three(on_measured)]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def _three(scores: Scores) -> Sequence[str]:
    return f"{scores.accuracy:.1%}", f"{scores.precision:.1%}", f"{scores.weighted_f1:.3f}"
