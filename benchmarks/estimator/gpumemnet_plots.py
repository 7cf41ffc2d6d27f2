"""Figures 5.11 to 5.13 of the GPUMemNet thesis, redrawn for `gpumemnet.py --part real`. Needs matplotlib."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.units import GiB
from cotenant.estimators.plot import new_figure

MARKS = {
    "traced": ("#00e05a", "o", "trace"),
    "hybrid": ("#7fbf7b", "D", "hybrid"),
    "gpumemnet-mlp": ("#2166ac", "s", "our GPUMemNet, MLPs"),
    "gpumemnet-sequence": ("#67a9cf", "^", "our GPUMemNet, sequence"),
    "gpumemnet, published": ("#762a83", "P", "GPUMemNet, published"),
    "horus, published": ("#b35806", "v", "Horus, published"),
    "faketensor, published": ("#e08214", "X", "FakeTensor, published"),
    "extra-trees": ("#878787", "<", "extra trees"),
    "boosting": ("#bababa", ">", "boosting"),
}
"""Color, marker and name of each estimator; the order of the legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealJob:
    """A measured job and its estimates; bytes of the whole device."""

    title: str
    measured_bytes: int
    reported_bytes: Mapping[str, float]

    @property
    def is_published(self) -> bool:
        """Whether the publication has an estimate for it."""
        return any(name.endswith("published") for name in self.reported_bytes)


def draw_all(folder: Path, jobs: Sequence[RealJob]) -> tuple[Path, ...]:
    """Draw the jobs with published estimates, the other jobs, and the errors of all; returns the files."""
    published = [job for job in jobs if job.is_published]
    others = [job for job in jobs if not job.is_published]
    files = tuple(folder / f"gpumemnet_real_{name}.svg" for name in ("published", "others", "errors"))
    _draw_jobs(files[0], "Jobs with published estimates", published)
    _draw_jobs(files[1], "Jobs without published estimates", others)
    _draw_errors(files[2], jobs)
    return files


def _draw_jobs(path: Path, title: str, jobs: Sequence[RealJob]) -> None:
    """One line per job: the measured bytes and each estimate."""
    figure = new_figure(path)
    figure.set_size_inches(10, 1.6 + 0.3 * len(jobs))
    axes: Any = figure.add_subplot()
    ordered = sorted(jobs, key=lambda job: -job.measured_bytes)
    heights = range(len(ordered))
    measured = [job.measured_bytes / GiB for job in ordered]
    axes.plot(measured, heights, "|", color="black", markersize=16, markeredgewidth=2.5, label="measured", zorder=2)
    for place, (name, (color, marker, label)) in enumerate(MARKS.items()):
        points = [(job.reported_bytes[name] / GiB, y) for y, job in enumerate(ordered) if name in job.reported_bytes]
        if points:
            x, y = zip(*points, strict=True)
            size, above = (14 if name == "traced" else 34), 3 + len(MARKS) - place
            axes.scatter(x, y, s=size, color=color, marker=marker, label=label, linewidths=0, zorder=above)
    axes.set_yticks(heights, [job.title for job in ordered], fontsize=8)
    axes.set_xlabel("GiB of the device")
    _finish(figure, axes, path, title)


def _draw_errors(path: Path, jobs: Sequence[RealJob]) -> None:
    """One line per estimator: estimate / measurement of every job, and the median."""
    figure = new_figure(path)
    figure.set_size_inches(10, 4.2)
    axes: Any = figure.add_subplot()
    names = [name for name in MARKS if any(name in job.reported_bytes for job in jobs)][::-1]
    for y, name in enumerate(names):
        color, marker, _ = MARKS[name]
        ratios = [job.reported_bytes[name] / job.measured_bytes for job in jobs if name in job.reported_bytes]
        axes.scatter(ratios, [y] * len(ratios), s=30, color=color, marker=marker, alpha=0.6, linewidths=0)
        axes.plot([statistics.median(ratios)], [y], "|", color="black", markersize=18, markeredgewidth=1.5)
    counts = [sum(name in job.reported_bytes for job in jobs) for name in names]
    labels = [f"{MARKS[name][2]} ({count})" for name, count in zip(names, counts, strict=True)]
    axes.set_yticks(range(len(names)), labels, fontsize=8)
    axes.axvline(1, color="#999999", linewidth=0.8, zorder=0)
    axes.set_xlabel("estimated / measured; below 1 is too low; bar: median; in brackets: number of jobs")
    _finish(figure, axes, path, "Relative estimate per job", legend=False)


def _finish(figure: Any, axes: Any, path: Path, title: str, *, legend: bool = True) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=10)
    if legend:
        figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
