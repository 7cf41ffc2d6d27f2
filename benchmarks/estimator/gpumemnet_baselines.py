"""Figures 5.1 to 5.3 of the thesis: what Horus says of MLPs, and FakeTensor of timm's networks, from published rows.

A part of `benchmarks.estimator.gpumemnet`; drawing needs matplotlib.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._lib.results import RESULTS
from cotenant.core.stats import quantile
from cotenant.core.units import GiB, MiB
from cotenant.demo.accuracy import signed_error
from cotenant.estimators.plot import new_figure

if TYPE_CHECKING:
    import argparse

MEASURED, ESTIMATED = "#1b1b1b", "#d95f02"
BINS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured job and one published estimate of it.

    Attributes:
        size: what the figure has on its x axis; neurons of all hidden layers, or the place by measured memory.
        is_doubted: whether the row is flagged: the GPU was full, the run failed, or the estimate is above the GPU.
    """

    size: float
    measured_mib: float
    estimated_mib: float
    is_doubted: bool = False

    @property
    def error(self) -> float:
        """Signed, relative."""
        return signed_error(self.estimated_mib, self.measured_mib)


def horus_points(path: Path) -> list[Point]:
    """The MLPs on MNIST of figure 5.1."""
    with path.open(newline="", encoding="utf-8") as lines:
        return [
            Point(
                size=int(cells["neurons_per_layer"]) * int(cells["hidden_layers"]),
                measured_mib=float(cells["measured_mib"]),
                estimated_mib=float(cells["horus_estimate_mib"]),
            )
            for cells in csv.DictReader(lines)
        ]


def timm_points(path: Path) -> list[Point]:
    """The networks of figures 5.2 and 5.3, each with five batch sizes, by measured memory."""
    with path.open(newline="", encoding="utf-8") as lines:
        rows = sorted(csv.DictReader(lines), key=lambda cells: float(cells["measured_mib"]))
    return [
        Point(
            size=place,
            measured_mib=float(cells["measured_mib"]),
            estimated_mib=float(cells["faketensor_mib"]),
            is_doubted=bool(cells["flag"]),
        )
        for place, cells in enumerate(rows)
    ]


def baselines(args: argparse.Namespace) -> list[str]:
    """The part: errors of both estimators, and the three figures."""
    horus = horus_points(args.data / "horus_mlp.csv")
    timm = timm_points(args.data / "timm_faketensor.csv")
    undoubted = [point for point in timm if not point.is_doubted]
    lines = [
        "Published measurements and published estimates; nothing here is ours. The thesis' text: Horus is up to",
        "350 GB off on MLPs, FakeTensor 470 GB on timm's networks; the published sheet of FakeTensor has more.",
        "A third of timm's networks is left out here, for checks.",
        "",
        "| estimator | rows | off by, median | P95 | most, GiB | relative, median | P95 | too low |",
        f"| --- {'| ---: ' * 7}|",
        error_line("Horus, MLPs", horus),
        error_line("FakeTensor, timm, all rows", timm),
        error_line("FakeTensor, timm, rows without a flag", undoubted),
        "",
        "Flags are of the data set: the GPU was full, the run failed, or a smaller batch took more memory.",
    ]
    if args.write:
        draw_sizes(
            RESULTS / "gpumemnet_baselines_horus.svg",
            horus,
            title="Figure 5.1: MLPs on MNIST",
            x="neurons of all hidden layers",
            estimator="Horus",
        )
        draw_sizes(
            RESULTS / "gpumemnet_baselines_faketensor.svg",
            timm,
            title="Figure 5.2: networks of timm, five batch sizes each",
            x="jobs, by measured memory",
            estimator="FakeTensor",
        )
        draw_differences(RESULTS / "gpumemnet_baselines_differences.svg", timm, undoubted)
        lines += [
            "",
            *(f"![{name}](gpumemnet_baselines_{name}.svg)" for name in ("horus", "faketensor", "differences")),
        ]
    return lines


def error_line(title: str, points: Sequence[Point]) -> str:
    """A line of the table: absolute and relative errors."""
    off = [abs(point.estimated_mib - point.measured_mib) * MiB / GiB for point in points]
    relative = [abs(point.error) for point in points]
    low = sum(point.error < 0 for point in points) / len(points)
    cells = [
        f"{len(points)}",
        *(f"{value:.2f}" for value in (statistics.median(off), quantile(off, 0.95), max(off))),
        *(f"{value:.0%}" for value in (statistics.median(relative), quantile(relative, 0.95), low)),
    ]
    return f"| {title} | {' | '.join(cells)} |"


def draw_sizes(path: Path, points: Sequence[Point], *, title: str, x: str, estimator: str) -> None:
    """Measured and estimated GiB of each job, on a logarithmic axis."""
    figure = new_figure(path)
    figure.set_size_inches(10, 4.2)
    axes: Any = figure.add_subplot()
    sizes = [point.size for point in points]
    for name, color, values in (
        (estimator, ESTIMATED, [point.estimated_mib for point in points]),
        ("measured", MEASURED, [point.measured_mib for point in points]),
    ):
        gib = [value * MiB / GiB for value in values]
        axes.plot(sizes, gib, ".", color=color, markersize=3, label=name, rasterized=True)
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel("GiB of the device")
    _finish(figure, axes, path, title)


def draw_differences(path: Path, points: Sequence[Point], undoubted: Sequence[Point]) -> None:
    """Histogram of |FakeTensor - measured|, all rows and those without a flag."""
    figure = new_figure(path)
    figure.set_size_inches(10, 4.2)
    axes: Any = figure.add_subplot()
    for name, color, shown in (("all rows", ESTIMATED, points), ("rows without a flag", MEASURED, undoubted)):
        gib = [abs(point.estimated_mib - point.measured_mib) * MiB / GiB for point in shown]
        axes.hist(gib, bins=[0.5 * i for i in range(BINS + 1)], color=color, alpha=0.7, label=f"{name} ({len(shown)})")
    beyond = sum(abs(point.estimated_mib - point.measured_mib) * MiB / GiB > BINS / 2 for point in points)
    axes.set_xlabel(f"GiB between FakeTensor and the measurement; {beyond} jobs are beyond {BINS // 2} GiB")
    axes.set_ylabel("jobs")
    axes.set_yscale("log")
    _finish(figure, axes, path, "Figure 5.3: differences of FakeTensor on timm's networks")


def _finish(figure: Any, axes: Any, path: Path, title: str) -> None:
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Date": None})
