"""What GPUs did over time, for the report: means over all of them, and each of them, or groups of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from cotenant.reporting.charts import Line, Strip, lines, strips
from cotenant.sim.evaluation import Evaluation, PolicyResult
from cotenant.sim.metrics import gpu_series

STEPS = 240
MAX_ROWS = 16

Series = Sequence[Sequence[float]]
"""By GPU, a value for each step."""


class TimeUnit(NamedTuple):
    """A unit of time for an axis."""

    name: str
    short: str
    seconds: float


UNITS = (TimeUnit("hours", "h", 3600.0), TimeUnit("minutes", "min", 60.0), TimeUnit("seconds", "s", 1.0))


def unit_of(longest_s: float) -> TimeUnit:
    """The largest unit of which there are at least two; NaN counts as nothing."""
    return next((each for each in UNITS if longest_s >= 2.0 * each.seconds), UNITS[-1])


def over_time(evaluation: Evaluation, tones: Mapping[str, str]) -> str:
    """Charts of SM activity and memory over time; empty where no run was recorded."""
    recorded = [each for each in evaluation.results if each.run.moments is not None]
    if not recorded:
        return ""
    longest_s = max(each.run.makespan_s for each in recorded)
    step_s, time = longest_s / STEPS, unit_of(longest_s)
    series = {each.policy: _series(each, step_s) for each in recorded}
    means = [
        (
            f"{title} of all GPUs over time",
            "ratio",
            [_mean_line(each, series[each.policy][which], step_s / time.seconds, tones) for each in recorded],
        )
        for which, title in enumerate(("SM activity", "Memory in use"))
    ]
    parts = ["<div class=two>"]
    for title, unit, found in means:
        top = max((y for line in found for _, y in line.points), default=1.0)
        drawn = lines(found, x_label=time.name, y_label=unit, top=min(1.0, 1.05 * top))
        parts.append(f"<section><h2>{title}</h2>{drawn}</section>")
    parts.append("</div>")
    count = len(evaluation.setting.cluster)
    grouped = "" if count <= MAX_ROWS else f", {count} in {MAX_ROWS} groups"
    parts.append(f"<h2>SM activity of every GPU over time{grouped}</h2>")
    for each in recorded:
        lasted = each.run.makespan_s / time.seconds
        rows = _rows(series[each.policy][0])
        drawn = strips(rows, lasted=lasted, of=longest_s / time.seconds, unit=time.short)
        parts.append(f"<figure class=wide><figcaption>{escape(each.policy)}</figcaption>{drawn}</figure>")
    parts.append("<p class=note>Darker is busier; white is idle. A row ends with its run.</p>")
    return "".join(parts)


def _series(result: PolicyResult, step_s: float) -> tuple[Series, Series]:
    """SM activity and memory of every GPU."""
    found = [gpu_series(result.run, gpu, step_s=step_s) for gpu in range(len(result.run.cluster))]
    return [[smact for _, smact, _ in each] for each in found], [[memory for _, _, memory in each] for each in found]


def _mean(series: Series) -> list[float]:
    return [sum(each) / len(series) for each in zip(*series, strict=True)]


def _mean_line(result: PolicyResult, series: Series, step: float, tones: Mapping[str, str]) -> Line:
    points = [((place + 0.5) * step, value) for place, value in enumerate(_mean(series))]
    return Line(result.policy, tones[result.policy], points)


def _rows(series: Series) -> list[Strip]:
    """A row for each GPU, or for each of `MAX_ROWS` groups of neighbors, by their mean."""
    count = len(series)
    if count <= MAX_ROWS:
        return [Strip(f"GPU {gpu}", each) for gpu, each in enumerate(series)]
    edges = [count * row // MAX_ROWS for row in range(MAX_ROWS + 1)]
    return [Strip(f"GPUs {first} to {end - 1}", _mean(series[first:end])) for first, end in itertools.pairwise(edges)]
