"""Model cards: the weights, their training data, their scores, and their limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotenant.estimators.learned.weights import Weights
from cotenant.learn.datasets.dataset_row import ESTIMATED, DatasetRow
from cotenant.learn.datasets.feature_table import FeatureTable
from cotenant.learn.models.cross_validation import FoldResult

_LICENSE = (
    "The measurements are GPUMemNet's (E. Yousefzadeh-Asl-Miandoab et al., arXiv 2602.17817), licensed CC BY 4.0 by "
    "the newest notice of its repository. Neither its code nor its weights are used."
)
_PUBLISHED_LIMITS = """\
- One GPU (A100-SXM4-40GB), fp32 with TF32 convolutions, Adam, one process, software of 2024. The data
  have no mixed precision, other optimizers, sharding, checkpointing, compiled models or other GPUs, and accuracy there
  was not measured.
- The memory outside the allocator in the environment of the measurements is subtracted; the context of the requested
  GPU is added."""


_TITLES = (
    "rows", "accuracy", "precision", "F1", "macro-F1", "class too low",
    "MAE MiB", "MAPE", "P95 MiB", "too low by > 5 %",
)  # fmt: skip
"""Of `score_table`; precision and F1 are weighted by the rows of a class."""
_VARIED = ("gpu", "optimizer", "precision")
_WARNED = "- An estimate for an input outside the ranges below has a warning."


def card_text(
    weights: Weights,
    tables: Sequence[FeatureTable],
    validated: Sequence[FoldResult],
    versions: Mapping[str, str],
    *,
    size_bytes: int,
) -> str:
    """The card of weights that were trained on `tables`; `validated` are in the same order, baselines included."""
    meta = weights.meta
    software = ", ".join(f"{name} {value}" for name, value in versions.items())
    size = f"{size_bytes / 1024:.0f} KiB"
    lines = [
        f"# {meta['model']}, {meta['family']}",
        "",
        f"Trained {meta['date']} with {software}; seed {meta['seed']}; {size}. Written by `cotenant learn train`.",
        "",
        "## Data",
        "",
        *[_data_line(table) for table in tables],
        "",
        _LICENSE if any("published" in source for source in meta["trained_on"]) else "",
        "",
        "## Scores",
        "",
        "Each row is predicted by a model that was trained without any row of its configuration.",
        "",
        *score_table(validated),
        "",
        *_calibration_lines(meta),
        "## Limits",
        "",
        _limits(tables),
        _WARNED,
        "",
        "## Inputs",
        "",
        "| feature | least | most |",
        "| --- | ---: | ---: |",
        *[
            f"| {name} | {low:.6g} | {high:.6g} |"
            for name, low, high in zip(meta["features"], meta["low"], meta["high"], strict=True)
        ],
    ]
    return "\n".join(lines) + "\n"


def score_table(results: Sequence[FoldResult]) -> list[str]:
    """A Markdown table of results, the first two of each table of rows being its baselines."""
    lines = [
        f"| model | {' | '.join(_TITLES)} |",
        f"| --- {'| ---: ' * len(_TITLES)}|",
    ]
    for result in results:
        found = result.overall
        numbers: tuple[str, ...] = ("", "", "", "")
        if found.mae_mib is not None:
            numbers = (
                f"{found.mae_mib:.1f}",
                f"{found.mape or 0:.2%}",
                f"{found.p95_mib:.0f}",
                f"{found.underestimated_5_percent or 0:.1%}",
            )
        classes = (
            f"{found.accuracy:.2%}",
            f"{found.precision:.2%}",
            f"{found.weighted_f1:.3f}",
            f"{found.macro_f1:.3f}",
        )
        cells = (result.model, f"{found.rows}", *classes, f"{found.below:.1%}")
        lines.append("| " + " | ".join((*cells, *numbers)) + " |")
    return lines


def _data_line(table: FeatureTable) -> str:
    sources = ", ".join(f"`{name}`" for name in sorted({row.source for row in table.rows}))
    out = int(table.oom.sum())
    return (
        f"- {sources}: {len(table)} rows of family {table.family}, {out} out of memory, {len(table.known)} whose peak "
        f"is known; classes of {table.class_mib} MiB."
    )


def _limits(tables: Sequence[FeatureTable]) -> str:
    """Limits of a model, by the sources of its rows."""
    rows = [row for table in tables for row in table.rows]
    if any(row.source.startswith("published") for row in rows):
        return _PUBLISHED_LIMITS
    varied = [f"{name}: {', '.join(values)}" for name in _VARIED if (values := _values(rows, name))]
    known = f"- The training data have only this. {'; '.join(varied) or 'The rows do not say how they were trained'}."
    sources = [source for source in ESTIMATED if any(row.source == source for row in rows)]
    note = f"\n- Its rows were {' or '.join(sources)}, not measured: the model learned to reproduce an estimate."
    return known + (note if sources else "")


def _values(rows: Sequence[DatasetRow], name: str) -> list[str]:
    return sorted({str(row.extras[name]) for row in rows if name in row.extras})


def _calibration_lines(meta: Mapping[str, object]) -> list[str]:
    found = meta.get("calibration")
    if not isinstance(found, Mapping):
        return []
    lines = [
        "## Margin",
        "",
        "One-sided, from out-of-fold errors, relative to the reserved bytes of the replay plus 200 MiB.",
        "",
        "| kind of network | rows | coverage | margin | margin for 99 % | median error |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind, quantiles in found.items():
        shares = f"{quantiles['quantile']:.2%} | {quantiles['quantile_99']:.2%} | {quantiles['median']:+.3%}"
        lines.append(f"| {kind} | {quantiles['rows']} | {quantiles['coverage']:.4f} | {shares} |")
    return [*lines, ""]
