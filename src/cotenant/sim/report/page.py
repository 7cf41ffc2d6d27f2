"""The HTML report of an evaluation: figures, charts, limits and assumptions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cotenant.core.units import format_duration
from cotenant.reporting.axes import number
from cotenant.reporting.charts import Bar, Line, Point, bars, lines, pareto
from cotenant.reporting.page import Html, Page, bold, join, legend, note
from cotenant.reporting.style import tone
from cotenant.sim.evaluation import Evaluation, PolicyResult
from cotenant.sim.limits.makespan_limits import MakespanLimits, makespan_limits
from cotenant.sim.metrics import interval
from cotenant.sim.report.over_time import TimeUnit, add_charts_over_time, unit_of

MAX_CDF_POINTS = 240

COLUMNS = (
    ("makespan", "makespan_s", "duration"),
    ("mean JCT", "jct_mean_s", "duration"),
    ("P95 JCT", "jct_p95_s", "duration"),
    ("mean wait", "wait_mean_s", "duration"),
    ("mean execution", "execution_mean_s", "duration"),
    ("slowdown", "slowdown_mean", "ratio"),
    ("within 1.5", "within_bound", "percent"),
    ("OOMs", "ooms", "count"),
    ("energy", "energy_j", "energy"),
)
"""Title, metric and format of each column of the table."""

COMPARED = ("makespan_s", "jct_mean_s", "jct_p95_s", "energy_j")

CHARTS = (
    ("Makespan", "makespan_s", None),
    ("Mean waiting time", "wait_mean_s", None),
    ("Mean execution time", "execution_mean_s", None),
    ("Mean JCT", "jct_mean_s", None),
    ("Energy, MJ", "energy_j", 1e6),
    ("Out-of-memory failures", "ooms", 1.0),
    ("Memory in use, share", "memory", 1.0),
    ("SM activity, share", "smact", 1.0),
    ("GPU time idle while jobs wait, share", "blocked", 1.0),
)
"""Title, metric and scale of each small chart; None for times, which get the unit that suits them."""

SPEEDS_NOTE = (
    "Speeds of jobs that share a GPU come from measured pairs, else from a fit to them, else from a law of SM "
    "activity; more than two jobs on a GPU are extrapolated."
)


def write_report(evaluation: Evaluation, path: Path) -> None:
    """Compute the limits and write the report to `path`.

    Raises:
        UsageError: the file cannot be written.
    """
    report(evaluation, makespan_limits(evaluation)).write(path)


def report(evaluation: Evaluation, limits: MakespanLimits) -> Page:
    """The report of an evaluation."""
    experiment = evaluation.experiment
    tones = _tones(evaluation)
    page = Page(f"{experiment.trace.name} on {experiment.cluster.text}")
    page.lead(_lead(evaluation, limits))
    page.heading("Figures")
    head = ("policy", *(title for title, _, _ in COLUMNS), "above best", "above bound")
    page.table(head, [_row(evaluation, result, limits) for result in evaluation.results])
    page.note(_intervals_note(evaluation))
    page.heading("Policies side by side")
    page.grid(_small_charts(evaluation, tones))
    page.columns([_tradeoff(evaluation, tones), _completion_times(evaluation, tones)])
    add_charts_over_time(page, evaluation, tones)
    page.heading("How this was made")
    page.items(_provenance(evaluation, limits))
    return page


def _tones(evaluation: Evaluation) -> Mapping[str, str]:
    """A color class for every policy; the baseline is gray."""
    names = [result.policy for result in evaluation.results]
    colored = [name for name in names if name != "exclusive"]
    found = {name: tone(index) for index, name in enumerate(colored)}
    return {name: found.get(name, "base") for name in names}


def _lead(evaluation: Evaluation, limits: MakespanLimits) -> Html:
    baseline = evaluation.baseline()
    jobs = len(evaluation.experiment.trace)
    shortest = min(evaluation.results, key=lambda result: result.metrics.makespan_s)
    quickest = min(evaluation.results, key=lambda result: result.metrics.jct_mean_s)
    makespan_s, jct_s = shortest.metrics.makespan_s, quickest.metrics.jct_mean_s
    against = change = ""
    if baseline is not None and baseline is not shortest:
        against = f", {makespan_s / baseline.metrics.makespan_s - 1:+.0%} against exclusive"
    if baseline is not None and baseline is not quickest:
        change = f" ({jct_s / baseline.metrics.jct_mean_s - 1:+.0%})"
    return join(
        [
            f"{jobs} jobs under {len(evaluation.results)} policies. Shortest makespan: ",
            bold(shortest.policy),
            f", {format_duration(makespan_s)}{against}; {limits.text(makespan_s)}. Shortest mean JCT: ",
            bold(quickest.policy),
            f", {format_duration(jct_s)}{change}.",
        ]
    )


def _row(evaluation: Evaluation, result: PolicyResult, limits: MakespanLimits) -> list[str]:
    cells = [_cell(evaluation, result, metric, kind) for _, metric, kind in COLUMNS]
    makespan_s = result.metrics.makespan_s
    above_bound = "-" if limits.bound_s is None else f"{makespan_s / limits.bound_s - 1:.0%}"
    return [result.policy, *cells, f"{makespan_s / limits.best_s - 1:.0%}", above_bound]


def _cell(evaluation: Evaluation, result: PolicyResult, metric: str, kind: str) -> Html:
    """The value; below it its change against the baseline, and the interval of that change over the bootstraps."""
    parts = [_formatted(float(getattr(result.metrics, metric)), kind)]
    change = None
    if metric in COMPARED and result is not evaluation.baseline():
        change = evaluation.change(result, metric)
    if change is not None and change.get("trace") is not None:
        parts.append(Html(f"<small>{change['trace']:+.0%}</small>"))
    if change is not None and change.get("low") is not None:
        parts.append(Html(f"<small>[{change['low']:+.0%}, {change['high']:+.0%}]</small>"))
    return join(parts)


def _formatted(value: float, kind: str) -> str:
    if not math.isfinite(value):
        return "-"
    if kind == "duration":
        return format_duration(value)
    if kind == "percent":
        return f"{value:.0%}"
    if kind == "energy":
        return f"{number(value / 1e6)} MJ"
    return f"{value:.0f}" if kind == "count" else f"{value:.2f}"


def _intervals_note(evaluation: Evaluation) -> str:
    if not evaluation.bootstrap:
        return "One run of one trace: differences of a few percent are chance. Use `--bootstrap` for intervals."
    return (
        "Changes are against exclusive: on the trace itself and, in brackets, the middle 95 % of "
        f"{evaluation.bootstrap} bootstraps of its jobs. In the charts, bars are the trace, whiskers the bootstraps."
    )


def _small_charts(evaluation: Evaluation, tones: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for title, metric, scale in CHARTS:
        unit = _unit(evaluation, metric)
        caption = title if scale is not None else f"{title}, {unit.name}"
        divisor = unit.seconds if scale is None else scale
        drawn = [_bar(result, tones[result.policy], metric, divisor) for result in evaluation.results]
        yield caption, bars(drawn, unit="")


def _bar(result: PolicyResult, color: str, metric: str, scale: float) -> Bar:
    value = float(getattr(result.metrics, metric)) / scale
    if len(result.samples) < 2:
        return Bar(result.policy, color, value)
    spread = interval([float(getattr(sample, metric)) / scale for sample in result.samples])
    return Bar(result.policy, color, value, spread.low, spread.high)


def _unit(evaluation: Evaluation, metric: str) -> TimeUnit:
    """The unit that suits the largest of these times."""
    times_s = [float(getattr(result.metrics, metric)) for result in evaluation.results]
    return unit_of(max((time_s for time_s in times_s if not math.isnan(time_s)), default=0.0))


def _tradeoff(evaluation: Evaluation, tones: Mapping[str, str]) -> tuple[str, list[str]]:
    unit = _unit(evaluation, "makespan_s")
    points = [
        Point(
            result.policy,
            tones[result.policy],
            result.metrics.slowdown_mean,
            result.metrics.makespan_s / unit.seconds,
        )
        for result in evaluation.results
    ]
    chart = pareto(points, x_label="mean slowdown of a running job", y_label=f"makespan, {unit.name}")
    text = "Down and left is better; the line joins the policies that no other policy beats on both axes."
    return "Makespan against slowdown", [chart, note(text)]


def _completion_times(evaluation: Evaluation, tones: Mapping[str, str]) -> tuple[str, list[str]]:
    longest_s = max((max(_jct_s(result), default=0.0) for result in evaluation.results), default=0.0)
    unit = unit_of(longest_s)
    drawn = [_cdf(result, tones[result.policy], unit) for result in evaluation.results]
    chart = lines(drawn, x_label=f"JCT, {unit.name}", y_label="share of jobs", log=True)
    return "Job completion times", [chart, legend(tones)]


def _jct_s(result: PolicyResult) -> list[float]:
    pairs = zip(result.run.columns.end_s, result.run.trace.submit_s, strict=True)
    return [end_s - submit_s for end_s, submit_s in pairs if not math.isnan(end_s)]


def _cdf(result: PolicyResult, color: str, unit: TimeUnit) -> Line:
    times = sorted(time_s / unit.seconds for time_s in _jct_s(result))
    points = [(0.0, 0.0)]
    every = max(1, len(times) // MAX_CDF_POINTS)
    for count, value in enumerate(times, start=1):
        if count % every == 0 or count == len(times):
            points += [(value, points[-1][1]), (value, count / len(times))]
    return Line(result.policy, color, points)


def _provenance(evaluation: Evaluation, limits: MakespanLimits) -> Sequence[str]:
    experiment = evaluation.experiment
    trace = experiment.trace
    why = f" {limits.note[0].upper()}{limits.note[1:]}." if limits.note else ""
    items = [
        f"Trace `{trace.name}`, digest {trace.digest()}: {trace.source}",
        *experiment.notes,
        f"Memory estimates from `{experiment.estimator}`; seed {experiment.config.seed}.",
        SPEEDS_NOTE,
        f"Best known makespan: {format_duration(limits.best_s)}, by {limits.best_by}.{why}",
    ]
    if limits.bound_s is not None:
        bound = format_duration(limits.bound_s)
        items.append(f"Proven bound: no schedule of these jobs on these GPUs ends before {bound}.")
    return items
