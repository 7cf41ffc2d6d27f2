"""What a data set looks like, as one page: distributions, correlations, projections, staircases.

After the figures 5.4 to 5.6 and 5.8 to 5.10 of the thesis behind GPUMemNet.
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
from cotenant.learn.datasets.dataset_row import DatasetRow
from cotenant.learn.datasets.feature_table import CLASS_MIB, FeatureTable, Matrix, table_of
from cotenant.learn.datasets.sources import read_families
from cotenant.learn.reports.html_page import Page, import_pyplot

TSNE_ROWS = 1500
"""More are thinned out by a fixed seed: t-SNE takes minutes for them."""
NEAR_MIB = 200
MIN_NEAR = 20
MAX_GROUPS = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Pages written, and the rows each shows."""

    pages: tuple[Path, ...]
    rows: dict[str, int]


def analyse_command(data: Sequence[Path], out: Path, *, seed: int = 0) -> Analysis:
    """Write `out/FAMILY.html` for each family of the data.

    Raises:
        DatasetError: the data cannot be read. UsageError: scikit-learn or matplotlib is not installed.
    """
    import_pyplot()
    out.mkdir(parents=True, exist_ok=True)
    pages, counts = [], {}
    for rows in read_families(data):
        table = table_of(rows, simulated=False)
        pages.append(analysis_page(table, rows, seed).write(out / table.family))
        counts[table.family] = len(table)
    return Analysis(pages=tuple(pages), rows=counts)


def analysis_page(table: FeatureTable, rows: Sequence[DatasetRow], seed: int = 0) -> Page:
    """The page of one table; `rows` are all that were read, failed ones too."""
    page = Page(f"Training jobs of family {table.family}")
    statuses = Counter(row.status for row in rows)
    page.text(
        f"{len(rows)} jobs: {', '.join(f'{count} {status}' for status, count in statuses.most_common())}. "
        f"Classes are of {CLASS_MIB[table.family]} MiB; jobs out of memory are in one above the card's last."
    )
    sources = Counter(row.source for row in rows)
    page.table(("source", "jobs"), [(source, str(count)) for source, count in sources.most_common()])
    page.heading("Distributions")
    page.figure(_distributions(table), "Memory, and the features of the paper; a flat one was drawn evenly.")
    page.figure(_by_group(rows), "Memory by shape of the architecture.")
    page.heading("Correlations")
    page.figure(_correlations(table), "Rank correlation (Spearman) of features and memory.")
    page.heading("Projections")
    page.figure(_projections(table, seed), "Features of the paper, scaled: two principal components, and t-SNE.")
    page.heading("Staircases")
    page.figure(_staircase(table), "Memory grows in steps: segments of the allocator, not tensors, are measured.")
    if int(_is_near(table).sum()) >= MIN_NEAR:
        page.figure(_steps(table), f"The {NEAR_MIB} MiB above the least, from near.")
    page.figure(_by_batch(table), "Memory by batch size; the line is the median, of neighbors where sizes are many.")
    return page


def _distributions(table: FeatureTable) -> Any:
    names = table.names["paper"]
    columns = 4
    lines = -(-(len(names) + 1) // columns)
    figure, axes = import_pyplot().subplots(lines, columns, figsize=(13, 2.6 * lines), squeeze=False)
    known = table.known
    features = table.features["paper"]
    panels = [
        (f"{dataset_summary(table)} MiB", table.peak_mib[known]),
        *((name, features[:, i]) for i, name in enumerate(names)),
    ]
    for axis, panel in zip(axes.flat, panels, strict=False):
        name, values = panel
        spread = values.max() / max(values.min(), 1e-9) > 1000 and values.min() > 0
        shown = np.log10(values) if spread else values
        axis.hist(shown, bins=_bins(shown), color="#4477aa")
        axis.set_title(f"log10 {name}" if spread else name, fontsize=9)
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    figure.tight_layout()
    return figure


def _bins(values: Matrix) -> Any:
    """About 40 bins; for whole numbers each holds as many of them, or an even spread would look like a comb."""
    low, high = float(values.min()), float(values.max())
    if (values != np.round(values)).any() or high == low:
        return 40
    return np.arange(low - 0.5, high + np.ceil((high - low) / 40) + 0.5, np.ceil((high - low) / 40))


def _by_group(rows: Sequence[DatasetRow]) -> Any:
    figure, axis = import_pyplot().subplots(figsize=(9, 3.5))
    groups = sorted({row.group for row in rows})
    peaks = [[row.peak_bytes / MiB for row in rows if row.group == group and row.peak_bytes] for group in groups]
    shown = [(group, peak) for group, peak in zip(groups, peaks, strict=True) if peak]
    axis.boxplot([values for _, values in shown], tick_labels=[group for group, _ in shown], showfliers=False)
    axis.set_ylabel("MiB")
    return figure


def _correlations(table: FeatureTable) -> Any:
    known = table.known
    names = [*table.names["paper"], f"{dataset_summary(table)} MiB"]
    matrix = np.column_stack([table.features["paper"][known], table.peak_mib[known]])
    ranked = np.apply_along_axis(ranks, 0, matrix)
    moving = ranked.std(axis=0) > 0
    found = np.corrcoef(ranked[:, moving].T)
    names = [name for name, moves in zip(names, moving, strict=True) if moves]
    figure, axis = import_pyplot().subplots(figsize=(7, 6))
    picture = axis.imshow(found, vmin=-1, vmax=1, cmap="RdBu_r")
    axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    figure.colorbar(picture, ax=axis, shrink=0.8)
    return figure


def _projections(table: FeatureTable, seed: int) -> Any:
    try:
        from sklearn.decomposition import PCA
        from sklearn.manifold import TSNE
    except ImportError as error:
        raise UsageError(
            "projections need scikit-learn, which is not installed", hint="`pip install cotenant[learn]`"
        ) from error
    chance = np.random.default_rng(seed)
    places = np.sort(chance.permutation(len(table))[:TSNE_ROWS])
    part = table.take(places)
    logs = np.sign(part.features["paper"]) * np.log1p(np.abs(part.features["paper"]))
    deviation = logs.std(axis=0)
    scaled = (logs - logs.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    figure, axes = import_pyplot().subplots(1, 2, figsize=(13, 5.5))
    fitted = PCA(2).fit(scaled)
    share = fitted.explained_variance_ratio_.sum()
    shapes = [(f"PCA, {share:.0%} of the variance", fitted.transform(scaled))]
    perplexity = min(30, max(2, (len(part) - 1) // 3))
    shapes.append(("t-SNE", TSNE(2, perplexity=perplexity, random_state=seed, init="pca").fit_transform(scaled)))
    for axis, (title, points) in zip(axes, shapes, strict=True):
        _scatter(axis, points, part)
        axis.set_title(title)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), fontsize=9, markerscale=2, frameon=False)
    return figure


def _scatter(axis: Any, points: Matrix, table: FeatureTable) -> None:
    classes = table.classes()
    colors = import_pyplot().get_cmap("viridis")
    present = sorted(set(classes.tolist()))
    for place, kind in enumerate(present):
        mask = classes == kind
        width = CLASS_MIB[table.family]
        is_top = kind == 40000 // width
        label = "above or OOM" if is_top else f"{kind * width}-{(kind + 1) * width} MiB"
        color = "#cc3311" if is_top else colors(place / max(1, len(present) - 1))
        axis.scatter(points[mask, 0], points[mask, 1], s=6, color=color, label=label)
    axis.set_xticks([])
    axis.set_yticks([])


def _staircase(table: FeatureTable) -> Any:
    known = table.known
    held = table.features["bytes"][known]
    names = table.names["bytes"]
    figure, axes = import_pyplot().subplots(1, 2, figsize=(13, 4.5))
    for axis, name in zip(axes, ("weights_mib", "outputs_mib"), strict=True):
        axis.scatter(held[:, names.index(name)], table.peak_mib[known], s=dot_size(len(known)), alpha=0.5, linewidths=0)
        axis.set_xscale("log")
        axis.set_xlabel(name.replace("_mib", ", MiB"))
        axis.set_ylabel(f"{dataset_summary(table)}, MiB")
    return figure


def _steps(table: FeatureTable) -> Any:
    """The staircases from near: jobs that need little more than the least one."""
    known = table.known
    held, names, peaks = table.features["bytes"][known], table.names["bytes"], table.peak_mib[known]
    near = _is_near(table)
    figure, axes = import_pyplot().subplots(1, 2, figsize=(13, 4.5))
    for axis, name in zip(axes, ("weights_mib", "outputs_mib"), strict=True):
        axis.scatter(held[near, names.index(name)], peaks[near], s=dot_size(int(near.sum())), alpha=0.5, linewidths=0)
        axis.set_xlabel(name.replace("_mib", ", MiB"))
        axis.set_ylabel(f"{dataset_summary(table)}, MiB")
        axis.grid(axis="y", color="#e4e4e4", linewidth=0.6)
    return figure


def _is_near(table: FeatureTable) -> NDArray[np.bool_]:
    """Of the rows whose peak is known."""
    peaks = table.peak_mib[table.known]
    return np.asarray(peaks <= peaks.min(initial=np.inf) + NEAR_MIB)


def _by_batch(table: FeatureTable) -> Any:
    known = table.known
    batches = np.array([table.rows[i].batch for i in known])
    peaks = table.peak_mib[known]
    figure, axis = import_pyplot().subplots(figsize=(9, 4))
    axis.scatter(batches, peaks, s=dot_size(len(known)), alpha=0.4, linewidths=0)
    groups = _groups(batches)
    axis.plot(
        [np.median(batches[group]) for group in groups], [np.median(peaks[group]) for group in groups], color="#cc3311"
    )
    axis.set_xlabel("batch")
    axis.set_ylabel(f"{dataset_summary(table)}, MiB")
    return figure


def _groups(batches: NDArray[Any]) -> list[NDArray[np.intp]]:
    """Places of rows of the same batch size or, where these are many, of neighboring ones."""
    order = np.argsort(batches, kind="stable")
    different, starts = np.unique(batches[order], return_index=True)
    if len(different) > MAX_GROUPS:
        starts = np.arange(0, len(order), max(3, -(-len(order) // MAX_GROUPS)))
    return np.split(order, starts[1:])


def dataset_summary(table: FeatureTable) -> str:
    """What the peaks of a table are: `measured`, `traced`, or both."""
    kinds = {"traced" if row.source == "traced" else "measured" for row in table.rows}
    return " or ".join(sorted(kinds))


def dot_size(count: int) -> float:
    """Of each of so many dots."""
    return 4 if count > 1000 else 16


def ranks(values: Matrix) -> Matrix:
    """Places of values in order; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    found: Matrix = (ends - (counts - 1) / 2)[inverse]
    return found
