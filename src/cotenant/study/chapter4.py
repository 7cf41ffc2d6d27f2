"""Figures 4.1 to 4.13 and table 4.2 of the thesis: what was published of each as numbers, beside what was measured.

The thesis prints most bars without their values; what its text and table 4.2 say in numbers is in
`published/chapter4.csv`. A figure of which nothing was published in numbers is drawn from measured rows only.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cotenant.core import stats
from cotenant.measurement.collocation import SIMULATED
from cotenant.measurement.job_list import ALONE, JobGroup, group_text
from cotenant.measurement.result_table import read_rows
from cotenant.reporting.charts import Bar, Line, bars, lines
from cotenant.reporting.page import Page, legend
from cotenant.reporting.plots import Dots, dots
from cotenant.reporting.style import tone
from cotenant.scheduling.sharing_guidelines import MAX_SMACT_SUM
from cotenant.study.guidelines import CollocationRow

PUBLISHED = Path(__file__).parent / "published" / "chapter4.csv"
WAYS = (ALONE, "time-sliced", "mps", "mig")
TONES = {way: tone(index) for index, way in enumerate(WAYS)}
QUANTITIES = {
    "epoch_ratio": "time of an epoch over that alone",
    "smact": "SM activity",
    "memory_ratio": "memory over that of one",
    "pcie_rx_bytes_s": "PCIe, MiB/s to the GPU",
    "energy_ratio": "energy over that of the same steps in turn",
    "power_w": "power, W",
}

Row = Mapping[str, str]


class Figure(NamedTuple):
    """A figure of equal jobs: its number and title, the job of the shipped campaign, and what it shows."""

    number: str
    title: str
    job: str
    quantities: tuple[str, ...] = ("epoch_ratio", "smact", "memory_ratio")


FIGURES = (
    Figure("4.1", "ResNet26 on CIFAR-10, batch 128", "small-b128"),
    Figure("4.2", "EfficientNetV2-S on ImageNet64, batch 128", "efficientnet-64px"),
    Figure("4.3", "CaiT-XXS24 on ImageNet, batch 128", "cait"),
    Figure("4.4", "PCIe traffic of ResNet26 on CIFAR-10, batch 32", "small-b32", ("pcie_rx_bytes_s",)),
    Figure("4.5", "Energy of ResNet26 on CIFAR-10, batch 32", "small-b32", ("energy_ratio",)),
    Figure("4.6", "Power of ResNet26 on CIFAR-10, batch 32", "small-b32", ("power_w",)),
    Figure("4.7", "ResNet26 on CIFAR-10, batch 32", "small-b32"),
    Figure("4.8", "EfficientNetV2-S on CIFAR-10, batch 128", "efficientnet-32px"),
    Figure("4.9", "ResNet50 on ImageNet64, batch 32", "medium-b32"),
    Figure("4.10", "ResNet50 on ImageNet64, batch 128", "medium-b128"),
    Figure("4.11", "ResNet152 on ImageNet, batch 32", "large"),
)


class PublishedValue(NamedTuple):
    """A published value, or range, of a figure; `low` is None where there are only words."""

    figure: str
    sharing: str
    degree: int
    quantity: str
    low: float | None
    high: float | None
    words: str


@cache
def published_values() -> tuple[PublishedValue, ...]:
    """All of chapter 4 that stands in numbers, or in words about a figure."""
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        return tuple(
            PublishedValue(
                figure=row["figure"],
                sharing=row["sharing"],
                degree=int(row["degree"]),
                quantity=row["quantity"],
                low=float(row["low"]) if row["low"] else None,
                high=float(row["high"]) if row["high"] else None,
                words=row["words"],
            )
            for row in csv.DictReader(file)
        )


class MeasuredValue(NamedTuple):
    """A measured value of a figure: the mean over repeats."""

    sharing: str
    degree: int
    quantity: str
    value: float


def measured_values(rows: Iterable[Row], job: str) -> list[MeasuredValue]:
    """What rows say of one job alone and beside others of its kind, in the order of the figures."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if set(row["group"].split("+")) == {job} and row["outcome"] == "ok" and row["until"] != "steps":
            groups.setdefault((row["sharing"].partition(":")[0], row["group"].count("+") + 1), []).append(row)
    alone = groups.get((ALONE, 1), [])
    one_bytes, one_power, one_step = (_mean(alone, name) for name in ("peak_device_bytes", "power_w", "step_s"))
    found = []
    for (sharing, degree), run in sorted(groups.items(), key=lambda entry: (WAYS.index(entry[0][0]), entry[0][1])):
        step, power = _mean(run, "step_s"), _mean(run, "power_w")
        pcie = _mean(run, "pcie_rx_bytes_s")
        values = {
            "epoch_ratio": _ratio(step, one_step),
            "smact": _mean(run, "smact"),
            "memory_ratio": _ratio(_mean(run, "peak_device_bytes"), one_bytes),
            "pcie_rx_bytes_s": None if pcie is None else pcie / 2**20,
            # In one second the group takes `power`, and does the work of `degree` jobs at 1 / slowdown.
            "energy_ratio": _ratio(_product(power, _ratio(step, one_step)), _product(one_power, float(degree))),
            "power_w": power,
        }
        found += [MeasuredValue(sharing, degree, name, value) for name, value in values.items() if value is not None]
    return found


def _mean(rows: Sequence[Row], column: str) -> float | None:
    values = [float(row[column]) for row in rows if row[column]]
    return stats.mean(values) if values else None


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _product(first: float | None, second: float | None) -> float | None:
    return first * second if first is not None and second is not None else None


def add_figures(page: Page, rows: Sequence[Row], folder: Path, published: Sequence[CollocationRow]) -> None:
    """Add all figures of the chapter to the page; `folder` has the samples over time of the runs."""
    is_simulated = any(row["gpu"].startswith(SIMULATED) for row in rows)
    how = SIMULATED if is_simulated else "measured"
    page.heading(f"Chapter 4 of the thesis: published, and {how} here")
    page.paragraph(legend(TONES))
    for figure in FIGURES:
        _add_figure(page, figure, measured_values(rows, figure.job), how)
    _add_mixes(page, rows, how)
    _add_over_time(page, rows, folder, how)
    _add_table(page, rows, how)
    page.heading("Pairs that AEGIS published, A100-40GB: gain over the sum of SM activities")
    pairs = [(row.smact_sum, row.gain) for row in published if row.smact_sum is not None and row.gain and row.slowdown]
    sums = [
        Dots(f"sum up to {MAX_SMACT_SUM:.0%}", tone(1), [point for point in pairs if point[0] <= MAX_SMACT_SUM]),
        Dots(f"above {MAX_SMACT_SUM:.0%}", tone(2), [point for point in pairs if point[0] > MAX_SMACT_SUM]),
    ]
    page.paragraph(legend({group.name: group.tone for group in sums}))
    page.figure(
        dots(
            sums,
            x_label="sum of SM activities alone",
            y_label="gain",
            width=620,
        ),
        f"{len(pairs)} pairs; the guideline's limit is {MAX_SMACT_SUM:.0%}",
    )


def _add_figure(page: Page, figure: Figure, measured: Sequence[MeasuredValue], how: str) -> None:
    page.heading(f"Figure {figure.number}: {figure.title}")
    known = [value for value in published_values() if value.figure == figure.number]
    charts = []
    for quantity in figure.quantities:
        found = [_published_bar(value) for value in known if value.quantity == quantity and value.low is not None]
        found += [
            Bar(f"{_name(value.sharing, value.degree)}, {how}", TONES[value.sharing], value.value)
            for value in measured
            if value.quantity == quantity
        ]
        if found:
            charts.append((QUANTITIES[quantity], bars(found, unit="", width=440, whisker="published range")))
    if charts:
        page.grid(charts)
    words = [
        f"{QUANTITIES[value.quantity]}, {_name(value.sharing, value.degree)}: {value.words} (published in words)"
        for value in known
        if value.words and value.low is None and value.quantity in figure.quantities
    ]
    unpublished = [
        QUANTITIES[quantity]
        for quantity in figure.quantities
        if not any(value.quantity == quantity and value.low is not None for value in known)
    ]
    if unpublished:
        words.append(f"not published in numbers: {', '.join(unpublished)}")
    if not measured:
        words.append(f"not measured here: job `{figure.job}` of the shipped campaign")
    page.items(words)


def _name(sharing: str, degree: int) -> str:
    return sharing if sharing == ALONE else f"{sharing}, {degree} jobs"


def _published_bar(value: PublishedValue) -> Bar:
    """The bar of a range ends in its middle; its name says the range."""
    low, high = value.low or 0.0, value.high or 0.0
    words = value.words.partition(",")[0].partition(";")[0]
    name = f"{_name(value.sharing, value.degree)}, published"
    if low == high:
        return Bar(f"{name}{', about' if words == 'about' else ''}", TONES[value.sharing], low)
    return Bar(f"{name} {low:g} to {high:g}", TONES[value.sharing], (low + high) / 2, low=low, high=high)


def _add_mixes(page: Page, rows: Sequence[Row], how: str) -> None:
    page.heading("Figure 4.12: time of a mix of jobs with fixed work, in turn and together")
    runs: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        if row["until"] == "steps" and row["run_s"] and row["alone_step_s"]:
            runs.setdefault((row["group"], row["sharing"]), {}).setdefault(row["repeat"], []).append(row)
    found = []
    for mix in dict.fromkeys(group for group, _ in runs):
        in_turn = [
            sum(float(row["steps_run"]) * float(row["alone_step_s"]) for row in run)
            for (group, _), repeats in runs.items()
            if group == mix
            for run in repeats.values()
        ]
        found.append(Bar(f"{group_text(mix.split('+'))}, in turn", TONES[ALONE], stats.mean(in_turn)))
        for (group, sharing), repeats in runs.items():
            if group == mix:
                together = stats.mean([max(float(row["run_s"]) for row in run) for run in repeats.values()])
                way = sharing.partition(":")[0]
                found.append(Bar(f"{group_text(mix.split('+'))}, {way}", TONES[way], together))
    if found:
        page.figure(bars(found, unit="s", width=900), f"Seconds until the last job is done; {how}")
    page.items(["not published in numbers", *([] if found else ['not measured here: groups with `until = "steps"`'])])


def _add_over_time(page: Page, rows: Sequence[Row], folder: Path, how: str) -> None:
    page.heading("Figure 4.13: SM activity and memory of a mix over time")
    mixes = [row for row in rows if row["until"] == "steps" and row["position"] == "1" and row["repeat"] == "1"]
    largest = max((row["group"] for row in mixes), key=lambda group: group.count("+"), default="")
    activity, memory = [], []
    for row in mixes:
        if row["group"] == largest:
            way = row["sharing"].partition(":")[0]
            group = JobGroup(jobs=tuple(largest.split("+")), sharing=row["sharing"], until="steps")
            path = folder / group.folder / group.run_folder(1) / "gpu.csv"
            samples = read_rows(path) if path.exists() else []
            began_s = float(samples[0]["at_s"]) if samples else 0.0
            activity.append(Line(way, TONES[way], _over_time(samples, "smact", began_s)))
            memory.append(
                Line(way, TONES[way], [(x, y / 2**30) for x, y in _over_time(samples, "used_bytes", began_s)])
            )
    charts = [
        (f"{name} of {group_text(largest.split('+'))}; {how}", _lines(found, unit))
        for name, unit, found in (("SM activity", "SMACT", activity), ("Memory", "GiB", memory))
        if any(line.points for line in found)
    ]
    if charts:
        page.grid(charts)
    page.items(["not published in numbers", *([] if charts else ['not measured here: groups with `until = "steps"`'])])


def _over_time(samples: Iterable[Row], column: str, began_s: float) -> list[tuple[float, float]]:
    return [(float(sample["at_s"]) - began_s, float(sample[column])) for sample in samples if sample[column]]


def _lines(found: Sequence[Line], unit: str) -> str:
    top = 1.05 * max((y for line in found for _, y in line.points), default=1.0) or 1.0
    return lines(found, x_label="seconds", y_label=unit, top=top)


def _add_table(page: Page, rows: Sequence[Row], how: str) -> None:
    page.heading("Table 4.2: a recommender beside ResNet152")
    known = {(value.quantity, value.sharing): value.low for value in published_values() if value.figure == "table 4.2"}
    measured = {
        (row["job"], row["sharing"].partition(":")[0]): row
        for row in rows
        if set(row["group"].split("+")) == {"dlrm", "large"} and row["slowdown"]
    }
    cells = []
    for way in WAYS[1:]:
        published = [known.get((name, way)) for name in ("DLRM slowdown", "ResNet152 slowdown", "smact")]
        ours = [measured.get((job, way), {}).get("slowdown", "") for job in ("dlrm", "large")]
        ours.append(measured.get(("dlrm", way), {}).get("smact", ""))
        cells.append((f"{way}, published", *("" if value is None else f"{value:.2f}" for value in published)))
        cells.append((f"{way}, {how}", *(f"{float(value):.2f}" if value else "-" for value in ours)))
    page.table(("sharing", "slowdown of DLRM", "slowdown of ResNet152", "SMACT"), cells)
