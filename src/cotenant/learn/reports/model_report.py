"""The page of a family: the scores of each model beside the published ones, and its plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cotenant.learn.datasets.feature_table import top_class
from cotenant.learn.models.cross_validation import DEFAULT_MODELS, FoldResult, Split, SplitBy, Validation, kfold_command
from cotenant.learn.reports.analysis import peak_label
from cotenant.reporting.page import Page
from cotenant.reporting.plots import Dots, dots, heatmap
from cotenant.reporting.style import tone

PUBLISHED = {
    "mlp": (("MLP ensemble", 0.976, 0.784), ("Transformer ensemble", 0.984, 0.893)),
    "cnn": (("MLP ensemble", 0.796, 0.698), ("Transformer ensemble", 0.803, 0.703)),
    "transformer": (("MLP ensemble", 0.848, 0.697), ("Transformer ensemble", 0.858, 0.733)),
}
"""Accuracy and macro-F1 that GPUMemNet reports (3 folds of one model that was not made anew for each of them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The pages written, and the validations that they show."""

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
    split: Split | None = None,
    plain: bool = False,
    workers: int = 1,
    class_mib: int | None = None,
    on_fold: Callable[[str, int], None] = lambda _model, _fold: None,
) -> Report:
    """Cross-validate as `kfold_command` does, and write `out/report-FAMILY.html` for each family.

    Raises:
        DatasetError, UsageError, UnknownName: as `kfold_command` does.
    """
    out.mkdir(parents=True, exist_ok=True)
    validations = kfold_command(
        data,
        models=models,
        folds=folds,
        seed=seed,
        by=by,
        split=split,
        plain=plain,
        workers=workers,
        class_mib=class_mib,
        on_fold=on_fold,
    )
    pages = [
        report_page(validation).write(out / f"report-{validation.table.family}.html") for validation in validations
    ]
    return Report(pages=tuple(pages), validations=tuple(validations))


def report_page(validation: Validation) -> Page:
    """The page of one family."""
    table, results = validation.table, validation.results
    page = Page(f"Memory models, family {table.family}")
    unseen = "configuration" if validation.by == "config" else "shape of the architecture, each left out once"
    page.lead(
        f"{len(table)} jobs, {int(table.oom.sum())} out of memory, {len(table.known)} whose peak is known. Every job "
        f"is predicted by a fresh model that saw no job of its {unseen} ({validation}). "
        f"Memory classes: {table.class_mib} MiB."
    )
    head = (
        "model",
        "accuracy",
        "precision",
        "F1",
        "macro-F1",
        "class too low",
        "MAE MiB",
        "MAPE",
        "P95 MiB",
        "too low by > 5 %",
    )
    page.table(head, [score_cells(result) for result in results])
    for reason in validation.skipped:
        page.paragraph(f"Not run: {reason}.")
    page.paragraph(finding(results))
    published = "; ".join(f"{name} {accuracy:.1%}, F1 {f1:.3f}" for name, accuracy, f1 in PUBLISHED[table.family])
    page.paragraph(
        f"Published by GPUMemNet for its own rows of this family, with one model for all folds: {published}."
    )
    page.heading(f"Predicted against {peak_label(table)}")
    page.paragraph("Each job once, predicted by the model that had not seen it.")
    page.grid(_scatter_plots(validation))
    page.heading("Confusion")
    page.paragraph("Rows are true classes, columns predicted ones; each is named by the thousands of MiB it begins at.")
    page.grid(_confusion_plots(validation))
    return page


def finding(results: Sequence[FoldResult]) -> str:
    """Whether a learned model beats the simulation, as a sentence."""
    by_name = {result.model: result.overall for result in results}
    simulation = by_name.get("simulation")
    if simulation is None:
        return "The simulation was not run, so what learning adds is unknown."
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
    """A row of the table of scores."""
    found = result.overall
    classes = (f"{found.accuracy:.2%}", f"{found.precision:.2%}", f"{found.weighted_f1:.3f}", f"{found.macro_f1:.3f}")
    cells = (result.model, *classes, f"{found.below:.1%}")
    if found.mae_mib is None or found.mape is None or found.p95_mib is None or found.underestimated_5_percent is None:
        return (*cells, "", "", "", "")
    return (
        *cells,
        f"{found.mae_mib:.1f}",
        f"{found.mape:.2%}",
        f"{found.p95_mib:.0f}",
        f"{found.underestimated_5_percent:.1%}",
    )


def _scatter_plots(validation: Validation) -> list[tuple[str, str]]:
    known = validation.table.known
    measured = (validation.table.peak_mib[known] / 1024).tolist()
    label = f"{peak_label(validation.table)}, GiB"
    figures = []
    for result in validation.results:
        if result.prediction.mib is None or result.model == "majority":
            continue
        predicted = (result.prediction.mib[known] / 1024).tolist()
        group = Dots(result.model, tone(0), list(zip(measured, predicted, strict=True)))
        figures.append((result.model, dots([group], x_label=label, y_label="predicted, GiB", diagonal=True)))
    return figures


def _confusion_plots(validation: Validation) -> list[tuple[str, str]]:
    figures = []
    for result in validation.results:
        if result.model == "majority":
            continue
        counts = result.overall.confusion
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        names = [_class_name(place, validation.table.class_mib) for place in range(len(counts))]
        labels = [[str(count) if count else "" for count in row] for row in counts.tolist()]
        figures.append((result.model, heatmap(shares.tolist(), row_names=names, column_names=names, labels=labels)))
    return figures


def _class_name(place: int, class_mib: int) -> str:
    """The thousands of MiB that the class begins at; `OOM` for jobs out of memory."""
    return "OOM" if place == top_class(class_mib) else f"{place * class_mib / 1000:g}"
