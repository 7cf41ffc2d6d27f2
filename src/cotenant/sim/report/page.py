"""An evaluation as one HTML page that needs nothing else: tables, charts, limits, and what was assumed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.units import format_duration
from cotenant.reporting.charts import Bar, Line, Point, bars, lines, number, scatter
from cotenant.reporting.style import STYLE, TONES
from cotenant.sim.evaluation import Evaluation, PolicyResult
from cotenant.sim.metrics import interval
from cotenant.sim.report.over_time import TimeUnit, over_time, unit_of

MAX_JOBS_FOR_SEARCH = 200
MAX_PROFILES_FOR_BOUND = 64
SEARCH_TRIES = 24
STEPS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far any policy can go on this trace; None where it is not known.

    Attributes:
        bound_s: no schedule has a shorter makespan. best_s: the shortest found, by whom.
    """

    bound_s: float | None
    best_s: float
    best_by: str
    note: str = ""

    def text(self, makespan_s: float) -> str:
        """`12 % above the best known, 20 % above the proven bound`."""
        said = f"{makespan_s / self.best_s - 1:.0%} above the best known"
        return said if self.bound_s is None else f"{said}, {makespan_s / self.bound_s - 1:.0%} above the proven bound"


def limits_of(evaluation: Evaluation, *, tries: int = SEARCH_TRIES) -> Limits:
    """The bound, and the best of the policies and of a search that knows everything."""
    from cotenant.sim.limits.bounds import makespan_bound
    from cotenant.sim.limits.oracle_search import best_found

    setting = evaluation.setting
    best = min(evaluation.results, key=lambda each: each.metrics.makespan_s)
    best_s, best_by = best.metrics.makespan_s, best.policy
    trace, cluster = setting.trace, setting.cluster
    known = trace.has_profiles and not any(slot.is_mig for slot in cluster.slots)
    if not known or len(trace.profiles) > MAX_PROFILES_FOR_BOUND:
        note = f"no bound: only for up to {MAX_PROFILES_FOR_BOUND} kinds of work whose activity is known, on whole GPUs"
        return Limits(bound_s=None, best_s=best_s, best_by=best_by, note=note)
    note = ""
    if len(trace) > MAX_JOBS_FOR_SEARCH:
        note = f"for more than {MAX_JOBS_FOR_SEARCH} jobs no better schedule is searched for"
    else:
        found = best_found(trace, cluster, tries=tries, interference=setting.interference, config=setting.config)
        if found.value_s < best_s:
            best_s, best_by = found.value_s, f"a search over {tries} schedules that knows everything"
    try:
        bound = makespan_bound(trace, cluster, interference=setting.interference, config=setting.config)
    except CotenantError as error:
        why = error.message if error.message.startswith("no bound") else f"no bound: {error.message}"
        return Limits(bound_s=None, best_s=best_s, best_by=best_by, note=why)
    if bound.critical_path_s >= bound.makespan_s:
        note = "; ".join(filter(None, [note, "one job decides the bound: when it came and how long it takes alone"]))
    return Limits(bound_s=bound.makespan_s, best_s=best_s, best_by=best_by, note=note)


def write_report(evaluation: Evaluation, path: Path) -> None:
    """Write the page to `path`.

    Raises:
        UsageError: the file cannot be written.
    """
    text = html(evaluation, limits_of(evaluation))
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write `{path}`: {error.strerror}") from error


def html(evaluation: Evaluation, limits: Limits) -> str:
    """The page."""
    tones = _tones(evaluation)
    setting = evaluation.setting
    title = f"{setting.trace.name} on {setting.cluster.text}"
    whole = _unit(evaluation, "makespan_s")
    longest_s = max((max(_jct_s(each), default=0.0) for each in evaluation.results), default=0.0)
    stay = unit_of(longest_s)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p class=lead>{_lead(evaluation, limits)}</p>",
        "<h2>Figures</h2>",
        _table(evaluation, limits),
        _note_on_intervals(evaluation),
        "<h2>Policies side by side</h2>",
        f"<div class=grid>{_small_multiples(evaluation, tones)}</div>",
        "<div class=two>",
        "<section><h2>What sharing costs, what it gains</h2>",
        scatter(
            [
                Point(r.policy, tones[r.policy], r.metrics.slowdown_mean, r.metrics.makespan_s / whole.seconds)
                for r in evaluation.results
            ],
            x_label="mean slowdown of a job while it runs",
            y_label=f"makespan, {whole.name}",
        ),
        "<p class=note>Down and left is better; the line joins policies that none betters in both.</p></section>",
        "<section><h2>How long jobs take, waiting included</h2>",
        lines(
            [_cdf(each, tones[each.policy], stay) for each in evaluation.results],
            x_label=f"JCT, {stay.name}",
            y_label="share of jobs",
            log=True,
        ),
        f"<p class=legend>{_legend(tones)}</p></section>",
        "</div>",
        over_time(evaluation, tones),
        "<h2>How this was made</h2>",
        _made(evaluation, limits),
    ]
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>" + "\n".join(parts) + "</body></html>\n"
    )


def _tones(evaluation: Evaluation) -> Mapping[str, str]:
    """A color class for every policy; the baseline is gray."""
    names = [each.policy for each in evaluation.results]
    others = [each for each in names if each != "exclusive"]
    found = {name: f"t{i % TONES}" for i, name in enumerate(others)}
    return {name: found.get(name, "base") for name in names}


def _lead(evaluation: Evaluation, limits: Limits) -> str:
    jobs = len(evaluation.setting.trace)
    best = min(evaluation.results, key=lambda each: each.metrics.makespan_s)
    said = f"{jobs} jobs under {len(evaluation.results)} policies. Shortest makespan: <b>{escape(best.policy)}</b>, "
    said += format_duration(best.metrics.makespan_s)
    baseline = evaluation.baseline()
    if baseline is not None and baseline is not best:
        said += f", {best.metrics.makespan_s / baseline.metrics.makespan_s - 1:+.0%} against exclusive"
    said += f"; {limits.text(best.metrics.makespan_s)}."
    quickest = min(evaluation.results, key=lambda each: each.metrics.jct_mean_s)
    said += f" Shortest mean JCT: <b>{escape(quickest.policy)}</b>, {format_duration(quickest.metrics.jct_mean_s)}"
    if baseline is not None and baseline is not quickest:
        said += f" ({quickest.metrics.jct_mean_s / baseline.metrics.jct_mean_s - 1:+.0%})"
    return said + "."


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
COMPARED = ("makespan_s", "jct_mean_s", "jct_p95_s", "energy_j")


def _table(evaluation: Evaluation, limits: Limits) -> str:
    head = "".join(f"<th>{name}</th>" for name, _, _ in COLUMNS)
    rows = [f"<tr><th class=name>policy</th>{head}<th>above best</th><th>above bound</th></tr>"]
    for each in evaluation.results:
        cells = "".join(_cell(evaluation, each, name, kind) for _, name, kind in COLUMNS)
        above = f"<td>{each.metrics.makespan_s / limits.best_s - 1:.0%}</td>"
        bound = "-" if limits.bound_s is None else f"{each.metrics.makespan_s / limits.bound_s - 1:.0%}"
        rows.append(f"<tr><th class=name>{escape(each.policy)}</th>{cells}{above}<td>{bound}</td></tr>")
    return f"<div class=scroll><table>{''.join(rows)}</table></div>"


def _cell(evaluation: Evaluation, result: PolicyResult, name: str, kind: str) -> str:
    value = float(getattr(result.metrics, name))
    text = _shown(value, kind)
    if name in COMPARED and result is not evaluation.baseline():
        change = evaluation.change(result, name)
        if change is not None:
            told = change.get("trace")
            text += f"<small>{told:+.0%}</small>" if told is not None else ""
            if change.get("low") is not None:
                text += f"<small>[{change['low']:+.0%}, {change['high']:+.0%}]</small>"
    return f"<td>{text}</td>"


def _shown(value: float, kind: str) -> str:
    if not math.isfinite(value):
        return "-"
    if kind == "duration":
        return format_duration(value)
    if kind == "percent":
        return f"{value:.0%}"
    if kind == "energy":
        return f"{number(value / 1e6)} MJ"
    return f"{value:.0f}" if kind == "count" else f"{value:.2f}"


def _note_on_intervals(evaluation: Evaluation) -> str:
    if not evaluation.bootstrap:
        said = "One run of one trace: differences of a few per cent are chance. Use <code>--bootstrap</code>."
    else:
        said = "Changes are against exclusive: on the trace itself, and in brackets what the middle 95 % of "
        said += f"{evaluation.bootstrap} bootstraps of its jobs say."
        said += " In the charts, bars are the trace and whiskers the bootstraps."
    return f"<p class=note>{said}</p>"


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


def _small_multiples(evaluation: Evaluation, tones: Mapping[str, str]) -> str:
    parts = []
    for title, name, fixed in CHARTS:
        unit = _unit(evaluation, name)
        scale = unit.seconds if fixed is None else fixed
        found = [_bar(each, tones[each.policy], name, scale) for each in evaluation.results]
        caption = title if fixed is not None else f"{title}, {unit.name}"
        parts.append(f"<figure><figcaption>{caption}</figcaption>{bars(found, unit='')}</figure>")
    return "".join(parts)


def _bar(result: PolicyResult, tone: str, name: str, scale: float) -> Bar:
    value = float(getattr(result.metrics, name)) / scale
    if len(result.samples) < 2:
        return Bar(result.policy, tone, value)
    spread = interval([float(getattr(each, name)) / scale for each in result.samples])
    return Bar(result.policy, tone, value, spread.low, spread.high)


def _unit(evaluation: Evaluation, name: str) -> TimeUnit:
    """The unit that suits the largest of these figures, in seconds."""
    found = [float(getattr(each.metrics, name)) for each in evaluation.results]
    return unit_of(max((each for each in found if not math.isnan(each)), default=0.0))


def _jct_s(result: PolicyResult) -> list[float]:
    run = result.run
    return [end - submit for end, submit in zip(run.end_s, run.trace.submit_s, strict=True) if not math.isnan(end)]


def _cdf(result: PolicyResult, tone: str, unit: TimeUnit) -> Line:
    found = sorted(each / unit.seconds for each in _jct_s(result))
    points = [(0.0, 0.0)]
    keep = max(1, len(found) // STEPS)
    for place, value in enumerate(found, start=1):
        if place % keep == 0 or place == len(found):
            points += [(value, points[-1][1]), (value, place / len(found))]
    return Line(result.policy, tone, points)


def _legend(tones: Mapping[str, str]) -> str:
    return " ".join(f'<span><i class="{tone}"></i>{escape(name)}</span>' for name, tone in tones.items())


SPEEDS_NOTE = (
    "Speeds of jobs that share a GPU: measured pairs where there are any, else a fit to them, else a law of SM "
    "activity; more than two at once is an extrapolation (docs/collocation.md)."
)


def _made(evaluation: Evaluation, limits: Limits) -> str:
    setting = evaluation.setting
    best, trace = format_duration(limits.best_s), setting.trace
    items = [
        f"Trace <code>{escape(trace.name)}</code>, digest {trace.digest()}: {escape(trace.source)}",
        *(re.sub(r"`(.+?)`", r"<code>\1</code>", escape(each)) for each in setting.notes),
        f"Memory told by <code>{escape(setting.estimator)}</code>; seed {setting.config.seed}.",
        SPEEDS_NOTE,
        f"Best known makespan: {best}, by {escape(limits.best_by)}."
        + (f" {escape(limits.note[0].upper() + limits.note[1:])}." if limits.note else ""),
    ]
    if limits.bound_s is not None:
        items.append(
            f"Proven bound: no schedule of these jobs on these GPUs ends before {format_duration(limits.bound_s)}."
        )
    return "<ul>" + "".join(f"<li>{each}</li>" for each in items if each) + "</ul>"


def summary(evaluation: Evaluation, limits: Limits) -> Sequence[str]:
    """A line for each policy: how far it is from the limits."""
    return [f"{each.policy}: {limits.text(each.metrics.makespan_s)}" for each in evaluation.results]
