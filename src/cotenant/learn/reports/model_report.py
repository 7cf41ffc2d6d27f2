"""The page of a family: how good each model is, beside what was published, with its plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cotenant.learn.datasets.feature_table import CLASS_MIB
from cotenant.learn.models.cross_validation import DEFAULT_MODELS, FoldResult, SplitBy, Validation, kfold_command
from cotenant.learn.reports.analysis import dataset_summary, dot_size
from cotenant.learn.reports.html_page import Page, import_pyplot

PUBLISHED = {
    "mlp": (("MLP ensemble", 0.976, 0.784), ("Transformer ensemble", 0.984, 0.893)),
    "cnn": (("MLP ensemble", 0.796, 0.698), ("Transformer ensemble", 0.803, 0.703)),
    "transformer": (("MLP ensemble", 0.848, 0.697), ("Transformer ensemble", 0.858, 0.733)),
}
"""Accuracy and macro-F1 that GPUMemNet reports (3 folds of one model that was not made anew for each of them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Pages written, and what is on them."""

    pages: tuple[Path, ...]
    validations: tuple[Validation, ...]


def report_command(
    data: Sequence[Path],
    out: Path,
    *,
    models: Sequence[str] = DEFAULT_MODELS,
    folds: int = 5,
    seed: int = 0,
    by: SplitBy = "config",
    plain: bool = False,
    workers: int = 1,
    on_fold: Callable[[str, int], None] = lambda _model, _fold: None,
) -> Report:
    """Cross-validate as `kfold_command` does, and write `out/report-FAMILY.html` for each family.

    Raises:
        DatasetError, UsageError, UnknownName: as `kfold_command` does. UsageError: matplotlib is not installed.
    """
    import_pyplot()
    out.mkdir(parents=True, exist_ok=True)
    validations = kfold_command(
        data, models=models, folds=folds, seed=seed, by=by, plain=plain, workers=workers, on_fold=on_fold
    )
    pages = [report_page(validation).write(out / f"report-{validation.table.family}") for validation in validations]
    return Report(pages=tuple(pages), validations=tuple(validations))


def report_page(validation: Validation) -> Page:
    """The page of one family."""
    table, results = validation.table, validation.results
    page = Page(f"Memory models, family {table.family}")
    split = "configuration" if validation.by == "config" else "shape of the architecture, each left out once"
    page.text(
        f"{len(table)} jobs, {int(table.oom.sum())} out of memory, {len(table.known)} whose peak is known. Every job "
        f"is predicted by a fresh model that saw no job of its {split}. Classes: {CLASS_MIB[table.family]} MiB."
    )
    head = ("model", "accuracy", "macro-F1", "class too low", "MAE MiB", "MAPE", "P95 MiB", "too low by > 5 %")
    page.table(head, [score_cells(result) for result in results])
    for row in validation.skipped:
        page.text(f"Not asked: {row}.")
    page.text(finding(results))
    told = "; ".join(f"{name} {accuracy:.1%}, F1 {f1:.3f}" for name, accuracy, f1 in PUBLISHED[table.family])
    page.text(f"Published by GPUMemNet for its own rows of this family, with one model for all folds: {told}.")
    page.heading(f"Predicted against {dataset_summary(table)}")
    page.figure(_scatter_plots(validation), "Each job once, by the model that had not seen it.")
    page.heading("Confusion")
    page.figure(
        _confusion_plots(validation),
        "True class by line, predicted by column; named by the thousands of MiB they begin at.",
    )
    return page


def finding(results: Sequence[FoldResult]) -> str:
    """Whether learning beat the simulation, in a sentence."""
    by_name = {result.model: result.overall for result in results}
    simulation = by_name.get("simulation")
    if simulation is None:
        return "The simulation was not asked, so nothing tells what learning adds."
    learned = {
        name: scores
        for name, scores in by_name.items()
        if name not in ("simulation", "majority", "line") and scores.accuracy > simulation.accuracy
    }
    if not learned:
        return (
            f"No learned model beats the simulation with its one constant ({simulation.accuracy:.2%} of classes right)."
        )
    best = max(learned, key=lambda name: learned[name].accuracy)
    return (
        f"Beside the simulation with its one constant ({simulation.accuracy:.2%} of classes right), learning adds: "
        f"`{best}` has {learned[best].accuracy:.2%}."
    )


def score_cells(result: FoldResult) -> tuple[str, ...]:
    """A line of the table of scores."""
    found = result.overall
    cells = (result.model, f"{found.accuracy:.2%}", f"{found.macro_f1:.3f}", f"{found.below:.1%}")
    if found.mae_mib is None or found.mape is None or found.p95_mib is None or found.under_5 is None:
        return (*cells, "", "", "", "")
    return (*cells, f"{found.mae_mib:.1f}", f"{found.mape:.2%}", f"{found.p95_mib:.0f}", f"{found.under_5:.1%}")


def _scatter_plots(validation: Validation) -> Any:
    shown = [
        result for result in validation.results if result.prediction.mib is not None and result.model != "majority"
    ]
    columns = 3
    lines = -(-len(shown) // columns)
    figure, axes = import_pyplot().subplots(lines, columns, figsize=(13, 4.2 * lines), squeeze=False)
    known = validation.table.known
    measured = validation.table.peak_mib[known] / 1024
    for axis, row in zip(axes.flat, shown, strict=False):
        assert row.prediction.mib is not None
        axis.plot([measured.min(), measured.max()], [measured.min(), measured.max()], color="#999999", linewidth=1)
        axis.scatter(measured, row.prediction.mib[known] / 1024, s=dot_size(len(known)), alpha=0.5, linewidths=0)
        axis.set_title(row.model, fontsize=10)
        axis.set_xlabel(f"{dataset_summary(validation.table)}, GiB")
        axis.set_ylabel("predicted, GiB")
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    figure.tight_layout()
    return figure


def _confusion_plots(validation: Validation) -> Any:
    shown = [result for result in validation.results if result.model != "majority"]
    columns = 4
    lines = -(-len(shown) // columns)
    figure, axes = import_pyplot().subplots(lines, columns, figsize=(13, 3.4 * lines), squeeze=False)
    for axis, row in zip(axes.flat, shown, strict=False):
        counts = row.overall.confusion
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        axis.imshow(shares, vmin=0, vmax=1, cmap="Blues")
        for (line, column), count in np.ndenumerate(counts):
            if count:
                color = "white" if shares[line, column] > 0.5 else "black"
                axis.text(column, line, str(count), ha="center", va="center", fontsize=7, color=color)
        axis.set_title(row.model, fontsize=10)
        names = [_class_name(place, validation.table.family) for place in range(len(counts))]
        axis.set_xticks(range(len(counts)), names, fontsize=7)
        axis.set_yticks(range(len(counts)), names, fontsize=7)
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    figure.tight_layout()
    return figure


def _class_name(place: int, family: str) -> str:
    """From how many thousand MiB on; the class of jobs out of memory is named."""
    width = CLASS_MIB[family]
    return "OOM" if place == 40000 // width else f"{place * width // 1000}"
