"""`cotenant learn train`, `cross-validate`, `test`, `analyze`, `report`, `importances`, `utilization`.

They make models from tables of runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.options import (
    argument,
    cli_argument,
    cli_command,
    cli_option,
    flag,
    json_option,
    option,
    option_group,
)
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.cli.parameter_types import PATH, integer
from cotenant.core.errors import UsageError

if TYPE_CHECKING:
    from cotenant.learn.models.cross_validation import FoldResult, SplitBy
    from cotenant.learn.models.importance import Importance
    from cotenant.learn.models.metrics import Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """The rows that models learn from."""

    tables: Sequence[Path] = argument(
        default=(),
        nargs=-1,
        required=True,
        type=PATH,
        metavar="DATA...",
        help="Tables of `learn clean`, or published CSV files.",
    )
    seed: int = option("--seed", type=integer(), default=0, metavar="N", help="Random seed.")


CLASS_WIDTH: Mapping[str, Any] = {
    "type": integer(minimum=1, maximum=40000),
    "metavar": "MIB",
    "help": "Width of the memory classes.  [default: as published, 1000 of MLPs, else 8000]",
}
"""Settings of `--class-mib`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationOptions:
    """What is cross-validated, and how."""

    models: str | None = option(
        "--models",
        metavar="NAME,...",
        help="Models to compare with the baselines.  "
        "[default: extra-trees-paper,extra-trees,boosting,simulation,hybrid]",
    )
    folds: int = option("--folds", type=integer(minimum=2), default=5, metavar="N", help="Number of folds.")
    split: str | None = option(
        "--split",
        metavar="TRAINING/VALIDATION/TEST",
        help="One split in place of folds, in percent; 70/20/10 in the thesis.",
    )
    by: SplitBy = option(
        "--by",
        type=click.Choice(["config", "shape"]),
        default="config",
        help="Never on both sides of a split: one configuration, or one architecture shape.",
    )
    plain: bool = flag("--plain", help="Leave out residual and dense networks, as the paper does.")
    workers: int = option(
        "--workers", type=integer(minimum=1), default=1, metavar="N", help="Processes that simulate the networks."
    )

    class_mib: int | None = option("--class-mib", **CLASS_WIDTH)

    def arguments(self, seed: int) -> dict[str, Any]:
        """Keyword arguments of `kfold_command` and `report_command`, which have their own default models.

        Raises:
            UsageError: `--split` is not a split, or stands beside `--by shape`.
        """
        from cotenant.learn.models.cross_validation import Split

        if self.split is not None and self.by == "shape":
            raise UsageError("`--split` and `--by shape` exclude each other: shapes are left out one after the other")
        named = (
            {}
            if self.models is None
            else {"models": [name for part in self.models.split(",") if (name := part.strip())]}
        )
        return {
            **named,
            "folds": self.folds,
            "by": self.by,
            "split": None if self.split is None else Split.parse(self.split),
            "class_mib": self.class_mib,
            "plain": self.plain,
            "seed": seed,
            "workers": self.workers,
        }


@cli_command("train")
@option_group("data", TrainingData)
@cli_option("--model", required=True, metavar="NAME", help="extra-trees, boosting, gpumemnet-mlp, hybrid, ...")
@cli_option("--out", type=PATH, required=True, metavar="DIR", help="Folder of the weights and their model card.")
@cli_option(
    "--folds", type=integer(minimum=2), default=3, metavar="N", help="Folds of the cross-validation on the card."
)
@cli_option("--workers", type=integer(minimum=1), default=1, metavar="N", help="Processes that simulate the networks.")
@cli_option("--class-mib", **CLASS_WIDTH)
@json_option
def train(
    data: TrainingData, *, model: str, out: Path, folds: int, workers: int, class_mib: int | None, json: bool
) -> None:
    """Train a model on all rows; write its weights, and a card with its training data and cross-validated scores.

    cotenant learn train data/mlp.csv --model extra-trees --out weights
    """
    from cotenant.learn.models.model_card import score_table
    from cotenant.learn.models.training import train_command

    trained = train_command(
        data.tables, model=model, out=out, seed=data.seed, folds=folds, workers=workers, class_mib=class_mib
    )
    if json:
        scores = [{"model": result.model, **_scores(result.overall)} for result in trained.validated]
        files = {"weights": str(trained.weights), "card": str(trained.card)}
        emit_json({**files, "rows": trained.rows, "validated": scores})
        return
    print("\n".join(score_table(trained.validated)))
    note(f"weights in `{trained.weights}`, card in `{trained.card}`")


@cli_command("cross-validate")
@option_group("data", TrainingData)
@option_group("options", ValidationOptions)
@json_option
def cross_validate(data: TrainingData, options: ValidationOptions, *, json: bool) -> None:
    """Cross-validate models, and two baselines: the most frequent class, and a line through two features.

    cotenant learn cross-validate data/mlp.csv --models extra-trees,simulation
    cotenant learn cross-validate data/cnn.csv --models hybrid --by shape
    cotenant learn cross-validate data/mlp.csv --models gpumemnet-mlp-13 --split 70/20/10 --class-mib 2000
    """
    from cotenant.learn.models.cross_validation import kfold_command
    from cotenant.learn.models.model_card import score_table

    validations = kfold_command(data.tables, **options.arguments(data.seed), on_fold=_show_fold)
    if json:
        families = {
            validation.table.family: [_result(result) for result in validation.results] for validation in validations
        }
        skipped = [reason for validation in validations for reason in validation.skipped]
        body = {"folds": options.folds, "by": options.by, "split": options.split, "seed": data.seed}
        emit_json({**body, "families": families, "skipped": skipped})
        return
    for validation in validations:
        print(f"{validation.table.family}, {validation}, classes of {validation.table.class_mib} MiB, seed {data.seed}")
        print("\n".join(score_table(validation.results)))
        for reason in validation.skipped:
            note(f"skipped: {reason}")


@cli_command("analyze")
@option_group("data", TrainingData)
@cli_option("--out", type=PATH, required=True, metavar="DIR", help="Folder of the pages.")
@json_option
def analyze(data: TrainingData, *, out: Path, json: bool) -> None:
    """Write one page of plots for each family: what a table contains.

    Distributions, correlations, projections (PCA, t-SNE), and memory by parameters and batch size.

      cotenant learn analyze data/*.csv --out pages
    """
    from cotenant.learn.reports.analysis import analyse_command

    analyzed = analyse_command(data.tables, out, seed=data.seed)
    _print_pages(analyzed.pages, {"rows": analyzed.rows}, json=json)


@cli_command("report")
@option_group("data", TrainingData)
@cli_option("--out", type=PATH, required=True, metavar="DIR", help="Folder of the pages.")
@option_group("options", ValidationOptions)
@json_option
def report(data: TrainingData, options: ValidationOptions, *, out: Path, json: bool) -> None:
    """Cross-validate models, and write one page for each family.

    Scores beside the baselines and the published ones, predictions against measurements, confusion matrices.

      cotenant learn report data/cnn.csv --out pages --models extra-trees,hybrid
    """
    from cotenant.learn.reports.model_report import report_command

    written = report_command(data.tables, out, **options.arguments(data.seed), on_fold=_show_fold)
    families = {
        validation.table.family: [_result(result) for result in validation.results]
        for validation in written.validations
    }
    _print_pages(written.pages, {"families": families}, json=json)


@cli_command("test")
@cli_argument("weights", type=PATH, metavar="WEIGHTS", help="A file of `learn train`.")
@option_group("data", TrainingData)
@json_option
def test(weights: Path, data: TrainingData, *, json: bool) -> None:
    """Score weights on rows that they were not trained on.

    The rows are not compared with those of the training; the model card lists these.

      cotenant learn test weights/extra-trees-mlp.npz other/mlp.csv
    """
    from cotenant.learn.models.training import test_command

    tested = test_command(weights, data.tables)
    if json:
        emit_json({"model": tested.model, "family": tested.family, **_scores(tested.scores)})
        return
    print(f"{tested.model} on {tested.family}")
    for name, value in _scores(tested.scores).items():
        if name != "confusion":
            print(f"  {name:<9} {'-' if value is None else f'{value:.4g}'}")


@cli_command("utilization")
@option_group("data", TrainingData)
@cli_option("--out", type=PATH, metavar="DIR", help="Train on all rows, and write the weights to DIR.")
@cli_option("--folds", type=integer(minimum=2), default=5, metavar="N", help="Number of folds.")
@cli_option(
    "--by",
    type=click.Choice(["config", "shape"]),
    default="config",
    help="Never on both sides of a split: one configuration, or one architecture shape.",
)
@json_option
def utilization(data: TrainingData, *, out: Path | None, folds: int, by: SplitBy, json: bool) -> None:
    """Cross-validate models of GPU activity: SMACT, SMOCC and DRAMA of a job that runs alone.

    A model needs a hundred rows of one family. `cotenant estimate --utilization` and the learned estimators use the
    models that are shipped.

      cotenant learn utilization data/mlp.csv --out weights
    """
    from cotenant.learn.models.utilization import utilization_command

    validated = utilization_command(data.tables, out=out, folds=folds, seed=data.seed, by=by)
    if json:
        rows = [dataclasses.asdict(measure) for measure in validated]
        emit_json({"measures": [{**row, "weights": row["weights"] and str(row["weights"])} for row in rows]})
        return
    titles = {"measure": "MEASURE", "rows": "ROWS", "r2": "R2", "mae": "MAE", "constant": "MAE OF THE MEDIAN"}
    lines = [
        {
            "measure": f"{measure.family} {measure.measure}",
            "rows": str(measure.rows),
            "r2": f"{measure.r2:.4f}",
            "mae": f"{measure.mae:.4f}",
            "constant": f"{measure.constant_mae:.4f}",
        }
        for measure in validated
    ]
    print_table(lines, [Column(key=key, title=title, right=key != "measure") for key, title in titles.items()])
    for measure in validated:
        if measure.weights is not None:
            note(f"weights in `{measure.weights}`")


@cli_command("importances")
@option_group("data", TrainingData)
@cli_option("--model", default="extra-trees-paper", metavar="NAME", help="Trees, or an ensemble of GPUMemNet.")
@cli_option("--split", default="70/20/10", metavar="TRAINING/VALIDATION/TEST", help="Parts of the rows, in percent.")
@cli_option("--repeats", type=integer(minimum=1), default=5, metavar="N", help="Shuffles of each feature.")
@cli_option("--class-mib", **CLASS_WIDTH)
@json_option
def importances(data: TrainingData, *, model: str, split: str, repeats: int, class_mib: int | None, json: bool) -> None:
    """List which features a model needs, by permutation importance.

    A model is trained on one part of the rows. In the test rows, one feature after the other is shuffled: the more
    accuracy is lost, and the more the error grows, the more the model needs it. Features that say the same can stand
    in for each other. IMPURITY is the trees' own importance, from the rows of training.

      cotenant learn importances data/mlp.csv --model extra-trees-paper
    """
    from cotenant.learn.models.cross_validation import Split
    from cotenant.learn.models.importance import importances_command

    found = importances_command(
        data.tables, model=model, split=Split.parse(split), seed=data.seed, repeats=repeats, class_mib=class_mib
    )
    if json:
        families = {
            one.family: {
                "accuracy": one.scores.accuracy,
                "features": [dataclasses.asdict(line) for line in one.features],
            }
            for one in found
        }
        emit_json({"model": model, "split": split, "seed": data.seed, "repeats": repeats, "families": families})
        return
    titles = {"feature": "FEATURE", "accuracy": "ACCURACY LOST", "mae": "MAE GAINED", "impurity": "IMPURITY"}
    columns = [Column(key=key, title=title, right=key != "feature") for key, title in titles.items()]
    for result in found:
        scores = result.scores
        print(f"{result.model} on {result.family}: accuracy {scores.accuracy:.1%} of {scores.rows} test rows")
        print_table([_importance_line(feature) for feature in result.features], columns)


def _importance_line(line: Importance) -> dict[str, str]:
    return {
        "feature": line.feature,
        "accuracy": f"{100 * line.accuracy_decrease:.1f} points",
        "mae": "-" if line.mae_increase_mib is None else f"{line.mae_increase_mib:.0f} MiB",
        "impurity": "-" if line.impurity is None else f"{line.impurity:.3f}",
    }


COMMANDS: Sequence[click.Command] = (train, cross_validate, test, analyze, report, importances, utilization)


def _show_fold(model: str, fold: int) -> None:
    note(f"fold {fold + 1} of {model}")


def _print_pages(pages: Sequence[Path], more: Mapping[str, Any], *, json: bool) -> None:
    if json:
        emit_json({"pages": [str(page) for page in pages], **more})
        return
    for page in pages:
        print(page)


def _result(result: FoldResult) -> dict[str, Any]:
    return {"model": result.model, **_scores(result.overall), "folds": [_scores(fold) for fold in result.folds]}


def _scores(scores: Scores) -> dict[str, Any]:
    """Scores as plain values."""
    return {**dataclasses.asdict(scores), "confusion": scores.confusion.tolist()}
