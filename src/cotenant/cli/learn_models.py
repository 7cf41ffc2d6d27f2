"""`cotenant learn train`, `cross_validate`, `test`, `analyse` and `report`: models from rows, and pages about both."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.core.errors import UsageError

if TYPE_CHECKING:
    from cotenant.learn.models.cross_validation import FoldResult, SplitBy
    from cotenant.learn.models.metrics import Scores

Json = Annotated[bool, typer.Option("--json", help="Print one JSON value instead of text.")]
Data = Annotated[list[Path], typer.Argument(metavar="DATA...", help="Tables of `learn clean`, or published CSV files.")]
Seed = Annotated[int, typer.Option(metavar="N", help="The same seed gives the same model.")]
Models = Annotated[
    str | None, typer.Option(metavar="NAME,...", help="Models to compare; the baselines always are.  [default: five]")
]
Folds = Annotated[int, typer.Option(min=2, metavar="N", help="How many.")]
By = Annotated[str, typer.Option(metavar="config|shape", help="No configuration, or no architecture, on both sides.")]
Plain = Annotated[bool, typer.Option("--plain", help="Without residual and dense networks, as in the paper.")]
Workers = Annotated[int, typer.Option(min=1, metavar="N", help="Processes that simulate the networks.")]


def train(
    data: Data,
    *,
    model: Annotated[str, typer.Option(metavar="NAME", help="extra-trees, boosting, gpumemnet-mlp, hybrid, ...")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the weights and their card.")],
    folds: Annotated[int, typer.Option(min=2, metavar="N", help="Of the cross-validation on the card.")] = 3,
    seed: Seed = 0,
    workers: Workers = 1,
    json: Json = False,
) -> None:
    """Train a model on all rows, and write its weights.

    With a card beside them: what it was trained on, and its cross-validated scores next to the baselines'.

      cotenant learn train data/mlp.csv --model extra-trees --out weights
    """
    from cotenant.learn.models.model_card import score_table
    from cotenant.learn.models.training import train_command

    found = train_command(data, model=model, out=out, seed=seed, folds=folds, workers=workers)
    if json:
        scores = [{"model": each.model, **_scores(each.overall)} for each in found.validated]
        files = {"weights": str(found.weights), "card": str(found.card)}
        emit_json({**files, "rows": found.rows, "validated": scores})
        return
    print("\n".join(score_table(found.validated)))
    note(f"weights in `{found.weights}`, card in `{found.card}`")


def cross_validate(
    data: Data,
    *,
    models: Models = None,
    folds: Folds = 5,
    by: By = "config",
    plain: Plain = False,
    seed: Seed = 0,
    workers: Workers = 1,
    json: Json = False,
) -> None:
    """Cross-validate models, each fold with a fresh one.

    The most frequent class and a line of two terms are in every table.

      cotenant learn cross-validate data/mlp.csv --models extra-trees,simulation
      cotenant learn cross-validate data/cnn.csv --models hybrid --by shape
    """
    from cotenant.learn.models.cross_validation import kfold_command
    from cotenant.learn.models.model_card import score_table

    validations = kfold_command(
        data,
        **_validation_arguments(models, folds=folds, by=by, plain=plain, seed=seed, workers=workers),
        on_fold=_show_fold,
    )
    if json:
        told = {each.table.family: [_result(result) for result in each.results] for each in validations}
        skipped = [why for each in validations for why in each.skipped]
        emit_json({"folds": folds, "by": by, "seed": seed, "families": told, "skipped": skipped})
        return
    for each in validations:
        split = "by architecture shape" if by == "shape" else f"{folds} folds"
        print(f"{each.table.family}, {split}, seed {seed}")
        print("\n".join(score_table(each.results)))
        for why in each.skipped:
            note(f"not asked: {why}")


def analyse(
    data: Data,
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the pages.")],
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Show what is in a table, as one page of plots for each family.

    Distributions, correlations, projections (PCA, t-SNE) and how memory grows with parameters and batch.

      cotenant learn analyse data/*.csv --out pages
    """
    from cotenant.learn.reports.analysis import analyse_command

    found = analyse_command(data, out, seed=seed)
    _tell_pages(found.pages, {"rows": found.rows}, json=json)


def report(
    data: Data,
    *,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the pages.")],
    models: Models = None,
    folds: Folds = 5,
    by: By = "config",
    plain: Plain = False,
    seed: Seed = 0,
    workers: Workers = 1,
    json: Json = False,
) -> None:
    """Cross-validate models, and write one page for each family.

    Scores beside the baselines and the published ones, predicted against measured, confusion.

      cotenant learn report data/cnn.csv --out pages --models extra-trees,hybrid
    """
    from cotenant.learn.reports.model_report import report_command

    asked = _validation_arguments(models, folds=folds, by=by, plain=plain, seed=seed, workers=workers)
    found = report_command(data, out, **asked, on_fold=_show_fold)
    told = {each.table.family: [_result(result) for result in each.results] for each in found.validations}
    _tell_pages(found.pages, {"families": told}, json=json)


def check(
    weights: Annotated[Path, typer.Argument(metavar="WEIGHTS", help="A file of `learn train`.")],
    data: Data,
    *,
    json: Json = False,
) -> None:
    """Score weights on rows that they were not trained on.

    That they were not is yours to see to; the card names the rows.

      cotenant learn test weights/extra-trees-mlp.npz other/mlp.csv
    """
    from cotenant.learn.models.training import test_command

    found = test_command(weights, data)
    if json:
        emit_json({"model": found.model, "family": found.family, **_scores(found.scores)})
        return
    told = {name: value for name, value in _scores(found.scores).items() if name != "confusion"}
    print(f"{found.model} on {found.family}")
    for name, value in told.items():
        print(f"  {name:<9} {'-' if value is None else f'{value:.4g}'}")


def utilization(
    data: Data,
    *,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Train on all rows, and write the weights here.")
    ] = None,
    folds: Folds = 5,
    by: By = "config",
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Cross-validate models of how busy a job keeps the GPU.

    SMACT, SMOCC and DRAMA, each where a hundred rows of a family have it. `cotenant estimate --utilization` and the
    learned estimators answer from the models that are shipped.

      cotenant learn utilization data/mlp.csv --out weights
    """
    from cotenant.learn.models.utilization import utilization_command

    found = utilization_command(data, out=out, folds=folds, seed=seed, by=_split(by))
    if json:
        told = [dataclasses.asdict(each) for each in found]
        emit_json({"measures": [{**each, "weights": each["weights"] and str(each["weights"])} for each in told]})
        return
    columns = {"measure": "MEASURE", "rows": "ROWS", "r2": "R2", "mae": "MAE", "constant": "MAE OF THE MEDIAN"}
    lines = [
        {
            "measure": f"{each.family} {each.measure}",
            "rows": str(each.rows),
            "r2": f"{each.r2:.4f}",
            "mae": f"{each.mae:.4f}",
            "constant": f"{each.constant_mae:.4f}",
        }
        for each in found
    ]
    print_table(lines, [Column(key=key, title=title, right=key != "measure") for key, title in columns.items()])
    for each in found:
        if each.weights is not None:
            note(f"weights in `{each.weights}`")


def _validation_arguments(
    models: str | None, *, folds: int, by: str, plain: bool, seed: int, workers: int
) -> dict[str, Any]:
    """Arguments that `cross_validate` and `report` share; the room has its own choice of models where none is named."""
    named = {} if models is None else {"models": [each.strip() for each in models.split(",") if each.strip()]}
    return {**named, "folds": folds, "by": _split(by), "plain": plain, "seed": seed, "workers": workers}


def _split(by: str) -> SplitBy:
    if by not in ("config", "shape"):
        raise UsageError(f"`--by` is `{by}`, wanted `config` or `shape`")
    return cast("SplitBy", by)


def _show_fold(model: str, fold: int) -> None:
    note(f"fold {fold + 1} of {model}")


def _tell_pages(pages: Sequence[Path], more: Mapping[str, Any], *, json: bool) -> None:
    if json:
        emit_json({"pages": [str(each) for each in pages], **more})
        return
    for each in pages:
        print(each)


def _result(found: FoldResult) -> dict[str, Any]:
    return {"model": found.model, **_scores(found.overall), "folds": [_scores(each) for each in found.folds]}


def _scores(scores: Scores) -> dict[str, Any]:
    """Scores as plain values."""
    return {**dataclasses.asdict(scores), "confusion": scores.confusion.tolist()}


COMMANDS: Mapping[str, Callable[..., None]] = {
    "train": train,
    "cross-validate": cross_validate,
    "test": check,
    "analyse": analyse,
    "report": report,
    "utilization": utilization,
}
