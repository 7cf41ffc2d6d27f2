"""The report: one page that needs nothing else, and charts that show the numbers they are given."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from cotenant.core.errors import UsageError
from cotenant.reporting.page import Page
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.evaluation import Experiment, evaluate
from cotenant.sim.limits.makespan_limits import MakespanLimits, makespan_limits
from cotenant.sim.report.over_time import add_charts_over_time, unit_of
from cotenant.sim.report.page import report, write_report


@pytest.fixture(scope="module")
def evaluation():
    trace = traces.load("t1")
    some = trace.derived([trace[i] for i in range(10)], name="t1 <first ten>")
    experiment = Experiment(trace=some, cluster=cluster.parse("2xA100-40GB"), config=SimulationConfig(record=True))
    return evaluate(experiment, ["exclusive", "carma"], bootstrap=3)


LIMITS = MakespanLimits(bound_s=3600.0, best_s=4000.0, best_by="a search")


def test_the_page_is_complete_and_self_contained(evaluation):
    page = report(evaluation, LIMITS).text()
    assert page.startswith("<!doctype html>")
    assert "t1 &lt;first ten&gt;" in page
    assert "<first ten>" not in page
    assert not re.search(r"(?:src|href)=|url\(|https?://|<script", page)
    for heading in ("Figures", "Policies side by side", "Job completion times", "SM activity of every GPU over time"):
        assert heading in page
    for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ET.fromstring(svg)


def test_the_table_has_the_numbers_of_the_runs(evaluation):
    page = report(evaluation, LIMITS).text()
    carma = evaluation.results[1].metrics
    change = carma.makespan_s / evaluation.results[0].metrics.makespan_s - 1
    row = next(html for html in re.findall(r"<tr>.*?</tr>", page) if "<th class=name>carma" in html)
    assert f"<small>{change:+.0%}</small>" in row
    assert f"<td>{carma.within_bound:.0%}</td>" in row
    assert f"<td>{carma.makespan_s / 4000 - 1:.0%}</td><td>{carma.makespan_s / 3600 - 1:.0%}</td>" in row
    assert len(re.findall(r"\[[+-]", row)) == 4


@pytest.mark.parametrize(
    ("longest_s", "unit"),
    [(90_000.0, "hours"), (7200.0, "hours"), (7199.0, "minutes"), (119.0, "seconds"), (0.0, "seconds")],
)
def test_axes_have_a_suitable_unit(longest_s, unit):
    assert unit_of(longest_s).name == unit


def test_a_run_of_seconds_is_drawn_in_seconds():
    trace = traces.load("t1")
    jobs = [replace(trace[i], submit_s=float(i), duration_s=10.0) for i in range(3)]
    config = SimulationConfig(record=True)
    experiment = Experiment(trace=trace.derived(jobs), cluster=cluster.parse("2xA100-40GB"), config=config)
    page = report(evaluate(experiment, ["exclusive"]), LIMITS).text()
    assert "Makespan, seconds" in page
    assert "JCT, seconds" in page
    assert "hours" not in page
    drawn = page.split("Job completion times")[1].split("</svg>")[0]
    assert re.search(r'class="line [^"]*" d="M\S+ \S+L', drawn)


def test_the_page_says_that_there_are_no_bootstraps(evaluation):
    page = report(evaluate(evaluation.experiment, ["exclusive"]), LIMITS).text()
    assert "One run of one trace" in page
    assert "whisker" not in page.split("</style>")[1]


def test_limits_are_below_every_policy(evaluation):
    pytest.importorskip("scipy", reason="bounds need scipy")
    found = makespan_limits(evaluation, tries=6)
    assert found.bound_s is not None
    assert found.bound_s <= found.best_s <= min(result.metrics.makespan_s for result in evaluation.results)
    assert "above the proven bound" in found.text(2.0 * found.best_s)


def test_without_a_bound_the_best_known_makespan_is_shown():
    found = MakespanLimits(bound_s=None, best_s=100.0, best_by="carma", note="no bound: why")
    assert found.text(125.0) == "25% above the best known"


def test_mig_clusters_have_no_bound(evaluation):
    experiment = Experiment(
        trace=evaluation.experiment.trace,
        cluster=cluster.parse("2xA100-40GB/4g.20gb+3g.20gb"),
        config=SimulationConfig(),
    )
    found = makespan_limits(evaluate(experiment, ["exclusive"]), tries=1)
    assert found.bound_s is None
    assert "whole GPUs" in found.note


def test_a_page_that_cannot_be_written_is_an_error(evaluation, tmp_path):
    path = tmp_path / "report.html"
    write_report(evaluate(evaluation.experiment, ["carma"]), path)
    assert path.read_text().count("</html>") == 1
    with pytest.raises(UsageError, match="cannot write"):
        write_report(evaluate(evaluation.experiment, ["carma"]), tmp_path / "none" / "report.html")


def test_many_gpus_are_drawn_as_groups_of_neighbors():
    trace = traces.load("t1")
    some = trace.derived([trace[i] for i in range(3)])
    experiment = Experiment(trace=some, cluster=cluster.parse("40xA100-40GB"), config=SimulationConfig(record=True))
    found = evaluate(experiment, ["exclusive"])
    page = Page("t")
    add_charts_over_time(page, found, {"exclusive": "base"})
    text = page.text()
    assert "SM activity of every GPU over time, 40 in 16 groups" in text
    assert text.count(">GPUs 0 to 1<") == 1
    assert text.count(">GPUs 37 to 39<") == 1
    unrecorded = Experiment(trace=some, cluster=experiment.cluster, config=SimulationConfig())
    page = Page("t")
    add_charts_over_time(page, evaluate(unrecorded, ["exclusive"]), {})
    assert page.text() == Page("t").text()


@pytest.mark.parametrize(
    ("share", "bound", "is_drawn"),
    [
        pytest.param(1.0, 2.0, True, id="moves"),
        pytest.param(0.0, 2.0, False, id="no job can be moved"),
    ],
)
def test_moves_are_arrows_between_the_runs_of_a_job(share, bound, is_drawn):
    config = SimulationConfig(record=True, movable_share=share)
    trace = traces.load("t1")
    found = evaluate(
        Experiment(trace=trace, cluster=cluster.parse("4xA100-40GB"), config=config, max_slowdown=bound),
        ["exclusive", "marginal-gain"],
    )
    page = Page("x")
    add_charts_over_time(page, found, {"exclusive": "base", "marginal-gain": "t0"})
    run = found.results[1].run
    moves = sum(run.columns.attempts) - len(trace)
    assert page.text().count('class="move"') == moves
    assert (moves > 0) == is_drawn
    assert (f"marginal-gain, {moves} moves" in page.text()) == is_drawn
    assert ("Jobs on every GPU" in page.text()) == is_drawn
    assert "exclusive, 0 moves" not in page.text()
    ends_s = {number: max(r.ended_s for gpu in run.runs for r in gpu if r.number == number) for number in range(60)}
    assert list(ends_s.values()) == pytest.approx(list(run.columns.end_s))
