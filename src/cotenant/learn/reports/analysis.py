"""What a data set looks like, as one page: distributions, correlations, projections, staircases.

After figures 5.4 to 5.6 and 5.8 to 5.10 of the thesis behind GPUMemNet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cotenant.core.errors import UsageError
from cotenant.core.units import MiB
from cotenant.learn.datasets.dataset_files import read_families
from cotenant.learn.datasets.dataset_row import ESTIMATED, DatasetRow
from cotenant.learn.datasets.feature_table import FeatureTable, Matrix, table_of
from cotenant.reporting.page import Page, legend
from cotenant.reporting.plots import Dots, bins_of, boxes, dots, heatmap, histogram
from cotenant.reporting.style import tone

TSNE_ROWS = 1500
"""Larger tables are sampled with a fixed seed: t-SNE takes minutes for them."""
NEAR_MIB = 200
MIN_NEAR = 20
MAX_GROUPS = 25

_LOG_RATIO = 1000
"""Positive values that span more than this are drawn on a logarithmic axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """The pages written, and the number of rows on each."""

    pages: tuple[Path, ...]
    rows: dict[str, int]


def analyse_command(data: Sequence[Path], out: Path, *, seed: int = 0) -> Analysis:
    """Write `out/FAMILY.html` for each family of the data.

    Raises:
        DatasetError: the data cannot be read. UsageError: scikit-learn is not installed.
    """
    _import_projections()
    out.mkdir(parents=True, exist_ok=True)
    pages, counts = [], {}
    for rows in read_families(data):
        table = table_of(rows, simulated=False)
        pages.append(analysis_page(table, rows, seed).write(out / f"{table.family}.html"))
        counts[table.family] = len(table)
    return Analysis(pages=tuple(pages), rows=counts)


def analysis_page(table: FeatureTable, rows: Sequence[DatasetRow], seed: int = 0) -> Page:
    """The page of one table; `rows` are all that were read, failed ones too."""
    page = Page(f"Training jobs of family {table.family}")
    statuses = Counter(row.status for row in rows)
    page.lead(
        f"{len(rows)} jobs: {', '.join(f'{count} {status}' for status, count in statuses.most_common())}. "
        f"Memory classes are {table.class_mib} MiB wide; jobs out of memory are in the class above the last."
    )
    sources = Counter(row.source for row in rows)
    page.table(("source", "jobs"), [(source, str(count)) for source, count in sources.most_common()])
    page.heading("Distributions")
    page.paragraph("Memory, and the features of the paper. A flat histogram was drawn evenly.")
    page.grid(_distributions(table))
    page.figure(_by_group(rows), "Memory by shape of the architecture.")
    page.heading("Correlations")
    page.figure(_correlations(table), "Rank correlation (Spearman) of features and memory.")
    page.heading("Projections")
    page.paragraph("The features of the paper, standardized; the color is the memory class.")
    tones = _class_tones(table)
    page.paragraph(legend(tones))
    page.grid(_projections(table, tones, seed))
    page.heading("Staircases")
    page.paragraph("Memory grows in steps: the allocator's segments are measured, not tensors.")
    everything: NDArray[np.bool_] = np.ones(len(table.known), dtype=bool)
    page.grid(_staircases(table, everything, x_log=True))
    near = _is_near(table)
    if int(near.sum()) >= MIN_NEAR:
        page.paragraph(f"Jobs within {NEAR_MIB} MiB of the smallest peak.")
        page.grid(_staircases(table, near, x_log=False))
    page.figure(_by_batch(table), "Memory by batch size; the line is the median of neighboring sizes.")
    return page


def _distributions(table: FeatureTable) -> list[tuple[str, str]]:
    known = table.known
    features = table.features["paper"]
    panels = [(f"{peak_label(table)}, MiB", table.peak_mib[known])]
    panels += [(name, features[:, i]) for i, name in enumerate(table.names["paper"])]
    figures = []
    for name, values in panels:
        log = bool(values.min() > 0 and values.max() / values.min() > _LOG_RATIO)
        figures.append((name, histogram(bins_of(values.tolist(), log=log), x_label=name, log=log)))
    return figures


def _by_group(rows: Sequence[DatasetRow]) -> str:
    groups = sorted({row.group for row in rows})
    peaks = [[row.peak_bytes / MiB for row in rows if row.group == group and row.peak_bytes] for group in groups]
    return boxes(list(zip(groups, peaks, strict=True)), label="MiB")


def _correlations(table: FeatureTable) -> str:
    known = table.known
    matrix = np.column_stack([table.features["paper"][known], table.peak_mib[known]])
    ranked = np.apply_along_axis(ranks, 0, matrix)
    varies = ranked.std(axis=0) > 0
    names = [*table.names["paper"], f"{peak_label(table)} MiB"]
    shown = [name for name, is_shown in zip(names, varies, strict=True) if is_shown]
    coefficients = np.atleast_2d(np.corrcoef(ranked[:, varies].T))
    return heatmap(coefficients.tolist(), row_names=shown, column_names=shown, low=-1.0)


def _import_projections() -> tuple[Any, Any]:
    try:
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise UsageError(
            "projections need scikit-learn, which is not installed", hint="`pip install cotenant[learn]`"
        ) from error
    return PCA, TSNE


def _projections(table: FeatureTable, tones: dict[str, str], seed: int) -> list[tuple[str, str]]:
    pca, tsne = _import_projections()
    chance = np.random.default_rng(seed)
    part = table.take(np.sort(chance.permutation(len(table))[:TSNE_ROWS]))
    logs = np.sign(part.features["paper"]) * np.log1p(np.abs(part.features["paper"]))
    deviation = logs.std(axis=0)
    scaled = (logs - logs.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    fitted = pca(2).fit(scaled)
    share = fitted.explained_variance_ratio_.sum()
    perplexity = min(30, max(2, (len(part) - 1) // 3))
    embedded = tsne(2, perplexity=perplexity, random_state=seed, init="pca").fit_transform(scaled)
    shapes = [(f"PCA, {share:.0%} of the variance", fitted.transform(scaled)), ("t-SNE", embedded)]
    labels = [part.class_name(int(place)) for place in part.classes()]
    return [(title, _class_dots(points, labels, tones)) for title, points in shapes]


def _class_dots(points: Matrix, labels: Sequence[str], tones: dict[str, str]) -> str:
    groups = []
    for label, color in tones.items():
        mask = [other == label for other in labels]
        groups.append(Dots(label, color, [(float(x), float(y)) for x, y in points[mask]]))
    return dots(groups, x_label="", y_label="", ticks=False)


def _class_tones(table: FeatureTable) -> dict[str, str]:
    present = sorted(set(table.classes().tolist()))
    return {table.class_name(place): tone(index) for index, place in enumerate(present)}


def _staircases(table: FeatureTable, shown: NDArray[np.bool_], *, x_log: bool) -> list[tuple[str, str]]:
    """Peaks by the bytes of weights and of outputs, of those rows of known peak that are `shown`."""
    known = table.known
    names, held, peaks = table.names["bytes"], table.features["bytes"][known][shown], table.peak_mib[known][shown]
    figures = []
    for name in ("weights_mib", "outputs_mib"):
        points = list(zip(held[:, names.index(name)].tolist(), peaks.tolist(), strict=True))
        label = name.replace("_mib", ", MiB")
        group = Dots(peak_label(table), tone(0), points)
        figures.append((label, dots([group], x_label=label, y_label=f"{peak_label(table)}, MiB", x_log=x_log)))
    return figures


def _is_near(table: FeatureTable) -> NDArray[np.bool_]:
    """Which rows of known peak need little more than the smallest one."""
    peaks = table.peak_mib[table.known]
    return np.asarray(peaks <= peaks.min(initial=np.inf) + NEAR_MIB)


def _by_batch(table: FeatureTable) -> str:
    known = table.known
    batches = np.array([table.rows[i].batch for i in known])
    peaks = table.peak_mib[known]
    medians = [(float(np.median(batches[group])), float(np.median(peaks[group]))) for group in _groups(batches)]
    groups = [
        Dots("jobs", tone(0), list(zip(batches.tolist(), peaks.tolist(), strict=True))),
        Dots("median", tone(1), medians, joined=True),
    ]
    return dots(groups, x_label="batch", y_label=f"{peak_label(table)}, MiB", width=900)


def _groups(batches: NDArray[Any]) -> list[NDArray[np.intp]]:
    """Indices of rows of the same batch size or, where these are many, of neighboring ones."""
    order = np.argsort(batches, kind="stable")
    different, starts = np.unique(batches[order], return_index=True)
    if len(different) > MAX_GROUPS:
        starts = np.arange(0, len(order), max(3, -(-len(order) // MAX_GROUPS)))
    return np.split(order, starts[1:])


def peak_label(table: FeatureTable) -> str:
    """What the peaks of a table are: `measured`, `traced`, `simulated`, or several of these."""
    kinds = {row.source if row.source in ESTIMATED else "measured" for row in table.rows}
    return " or ".join(sorted(kinds))


def ranks(values: Matrix) -> Matrix:
    """Ranks of values; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: Matrix = (ends - (counts - 1) / 2)[inverse]
    return found
