"""Charts of GPU use over time: means over all GPUs, one strip per GPU or group of GPUs, and runs with their moves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cotenant.reporting.charts import Line, Strip, lines, strips
from cotenant.reporting.page import Page
from cotenant.reporting.schedule_chart import ScheduledRun, schedule
from cotenant.sim.evaluation import Evaluation, PolicyResult
from cotenant.sim.metrics import gpu_series

STEPS = 240
MAX_ROWS = 16
MAX_JOBS = 500
"""Of more jobs no single one could be seen."""

Series = Sequence[Sequence[float]]
"""One sequence per GPU, one value per step."""


class TimeUnit(NamedTuple):
    """A unit of time for an axis."""

    name: str
    short: str
    seconds: float


UNITS = (TimeUnit("hours", "h", 3600.0), TimeUnit("minutes", "min", 60.0), TimeUnit("seconds", "s", 1.0))


def unit_of(duration_s: float) -> TimeUnit:
    """The largest unit that fits twice into `duration_s`; seconds for NaN."""
    return next((unit for unit in UNITS if duration_s >= 2.0 * unit.seconds), UNITS[-1])


def add_charts_over_time(page: Page, evaluation: Evaluation, tones: Mapping[str, str]) -> None:
    """Add charts of SM activity and memory over time; nothing if no run was recorded."""
    recorded = [result for result in evaluation.results if result.run.moments is not None]
    if not recorded:
        return
    longest_s = max(result.run.makespan_s for result in recorded)
    step_s, unit = longest_s / STEPS, unit_of(longest_s)
    series = {result.policy: _series(result, step_s) for result in recorded}
    sections = []
    for measure, title in enumerate(("SM activity", "Memory in use")):
        means = [
            _mean_line(result, series[result.policy][measure], step_s / unit.seconds, tones) for result in recorded
        ]
        top = max((y for line in means for _, y in line.points), default=1.0)
        chart = lines(means, x_label=unit.name, y_label="ratio", top=min(1.0, 1.05 * top))
        sections.append((f"{title} of all GPUs over time", [chart]))
    page.columns(sections)
    gpus = len(evaluation.experiment.cluster)
    grouped = "" if gpus <= MAX_ROWS else f", {gpus} in {MAX_ROWS} groups"
    page.heading(f"SM activity of every GPU over time{grouped}")
    for result in recorded:
        chart = strips(
            _strips(series[result.policy][0]),
            duration=result.run.makespan_s / unit.seconds,
            axis_end=longest_s / unit.seconds,
            unit=unit.short,
        )
        page.figure(chart, result.policy)
    page.note("Darker is busier; white is idle. Each row ends at the makespan of its policy.")
    _add_moves(page, recorded, longest_s, unit)


def _add_moves(page: Page, recorded: Sequence[PolicyResult], longest_s: float, unit: TimeUnit) -> None:
    """Add the runs of each GPU and the moves between them, for policies that moved jobs, where they can be drawn."""
    moved = [result for result in recorded if any(run.is_moved for gpu in result.run.runs or () for run in gpu)]
    moved = [result for result in moved if len(result.run.runs or ()) <= MAX_ROWS and len(result.run.trace) <= MAX_JOBS]
    if not moved:
        return
    page.heading("Jobs on every GPU, and their moves")
    for result in moved:
        gpus = result.run.runs or ()
        found = [
            ScheduledRun(row, run.number, run.placed_s / unit.seconds, run.ended_s / unit.seconds, run.is_moved)
            for row, runs in enumerate(gpus)
            for run in runs
        ]
        names = [f"GPU {row}" for row in range(len(gpus))]
        count = len({(run.number, run.ended_s) for runs in gpus for run in runs if run.is_moved})
        chart = schedule(found, names, axis_end=longest_s / unit.seconds, unit=unit.short)
        page.figure(chart, f"{result.policy}, {count} moves")
    page.note("A bar is a run of a job. An arrow leads from where a job was moved away to where it goes on.")


def _series(result: PolicyResult, step_s: float) -> tuple[Series, Series]:
    """SM activity and memory of every GPU."""
    found = [gpu_series(result.run, gpu, step_s=step_s) for gpu in range(len(result.run.cluster))]
    return [[smact for _, smact, _ in gpu] for gpu in found], [[memory for _, _, memory in gpu] for gpu in found]


def _mean(series: Series) -> list[float]:
    return [sum(values) / len(series) for values in zip(*series, strict=True)]


def _mean_line(result: PolicyResult, series: Series, step: float, tones: Mapping[str, str]) -> Line:
    points = [((index + 0.5) * step, value) for index, value in enumerate(_mean(series))]
    return Line(result.policy, tones[result.policy], points)


def _strips(series: Series) -> list[Strip]:
    """A strip per GPU, or the mean of each of `MAX_ROWS` groups of neighbors."""
    count = len(series)
    if count <= MAX_ROWS:
        return [Strip(f"GPU {gpu}", values) for gpu, values in enumerate(series)]
    edges = [count * row // MAX_ROWS for row in range(MAX_ROWS + 1)]
    return [Strip(f"GPUs {first} to {end - 1}", _mean(series[first:end])) for first, end in itertools.pairwise(edges)]
