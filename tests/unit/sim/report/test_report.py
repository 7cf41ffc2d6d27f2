"""The report: one page that needs nothing else, and charts that show the numbers they are given."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from cotenant.core.errors import UsageError
from cotenant.reporting.charts import Bar, Line, Point, Strip, bars, lines, number, scatter, strips
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.evaluation import Experiment, evaluate
from cotenant.sim.report.over_time import over_time, unit_of
from cotenant.sim.report.page import Limits, html, limits_of, summary, write_report


@pytest.fixture(scope="module")
def evaluation():
    trace = traces.load("t1")
    some = trace.changed([trace[i] for i in range(10)], name="t1 <first ten>")
    setting = Experiment(trace=some, cluster=cluster.parse("2xA100-40GB"), config=SimulationConfig(record=True))
    return evaluate(setting, ["exclusive", "carma"], bootstrap=3)


LIMITS = Limits(bound_s=3600.0, best_s=4000.0, best_by="a search")


def test_page_is_complete_and_needs_nothing_else(evaluation):
    page = html(evaluation, LIMITS)
    assert page.startswith("<!doctype html>")
    assert "t1 &lt;first ten&gt;" in page
    assert "<first ten>" not in page
    assert not re.search(r"(?:src|href)=|url\(|https?://|<script", page)
    for heading in ("Figures", "Policies side by side", "How long jobs take", "SM activity of every GPU over time"):
        assert heading in page
    for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ET.fromstring(svg)


def test_table_has_the_figures(evaluation):
    page = html(evaluation, LIMITS)
    carma = evaluation.results[1].metrics
    change = carma.makespan_s / evaluation.results[0].metrics.makespan_s - 1
    row = next(each for each in re.findall(r"<tr>.*?</tr>", page) if "<th class=name>carma" in each)
    assert f"<small>{change:+.0%}</small>" in row
    assert f"<td>{carma.within_bound:.0%}</td>" in row
    assert f"<td>{carma.makespan_s / 4000 - 1:.0%}</td><td>{carma.makespan_s / 3600 - 1:.0%}</td>" in row
    assert len(re.findall(r"\[[+-]", row)) == 4


@pytest.mark.parametrize(
    ("longest_s", "unit"),
    [(90_000.0, "hours"), (7200.0, "hours"), (7199.0, "minutes"), (119.0, "seconds"), (0.0, "seconds")],
)
def test_axes_have_a_unit_that_suits(longest_s, unit):
    assert unit_of(longest_s).name == unit


def test_a_run_of_seconds_is_drawn_in_seconds():
    trace = traces.load("t1")
    jobs = [replace(trace[i], submit_s=float(i), duration_s=10.0) for i in range(3)]
    config = SimulationConfig(record=True)
    setting = Experiment(trace=trace.changed(jobs), cluster=cluster.parse("2xA100-40GB"), config=config)
    page = html(evaluate(setting, ["exclusive"]), LIMITS)
    assert "Makespan, seconds" in page
    assert "JCT, seconds" in page
    assert "hours" not in page
    drawn = page.split("How long jobs take")[1].split("</svg>")[0]
    assert re.search(r'class="line [^"]*" d="M\S+ \S+L', drawn)


def test_without_bootstraps_it_says_so(evaluation):
    page = html(evaluate(evaluation.setting, ["exclusive"]), LIMITS)
    assert "One run of one trace" in page
    assert "whisker" not in page.split("</style>")[1]


def test_limits_are_below_every_policy(evaluation):
    pytest.importorskip("scipy", reason="bounds need scipy")
    found = limits_of(evaluation, tries=6)
    assert found.bound_s is not None
    assert found.bound_s <= found.best_s <= min(each.metrics.makespan_s for each in evaluation.results)
    assert all("above the proven bound" in line for line in summary(evaluation, found))


def test_limits_without_a_bound():
    found = Limits(bound_s=None, best_s=100.0, best_by="carma", note="no bound: why")
    assert found.text(125.0) == "25% above the best known"


def test_mig_clusters_have_no_bound(evaluation):
    setting = Experiment(
        trace=evaluation.setting.trace, cluster=cluster.parse("2xA100-40GB/4g.20gb+3g.20gb"), config=SimulationConfig()
    )
    found = limits_of(evaluate(setting, ["exclusive"]), tries=1)
    assert found.bound_s is None
    assert "whole GPUs" in found.note


def test_file_that_cannot_be_written(evaluation, tmp_path):
    path = tmp_path / "report.html"
    write_report(evaluate(evaluation.setting, ["carma"]), path)
    assert path.read_text().count("</html>") == 1
    with pytest.raises(UsageError, match="cannot write"):
        write_report(evaluate(evaluation.setting, ["carma"]), tmp_path / "none" / "report.html")


def shapes(svg, tag):
    return [each for each in ET.fromstring(svg).iter() if each.tag == tag]


def test_bars_are_as_long_as_their_values():
    svg = bars([Bar("one", "t0", 10.0), Bar("two", "t1", 5.0, 4.0, 8.0), Bar("none", "t2", float("nan"))], unit="s")
    wide = [float(each.get("width")) for each in shapes(svg, "rect")]
    assert len(wide) == 2
    assert wide[0] == pytest.approx(2 * wide[1], rel=0.01)
    assert len(shapes(svg, "path")) == 1
    assert "two: 5 s, 95 % of bootstraps 4 to 8" in svg


def test_marks_stand_where_their_values_are():
    svg = bars([Bar("one", "t0", 10.0, mark=5.0), Bar("two", "t1", 8.0)], unit="s")
    (mark,) = [each.get("d") for each in shapes(svg, "path") if each.get("class") == "mark"]
    bar = shapes(svg, "rect")[0]
    assert float(mark[1:].split()[0]) == pytest.approx(float(bar.get("x")) + float(bar.get("width")) / 2, abs=0.1)


def test_in_a_crowd_the_last_names_are_left_to_the_legend():
    crowd = [Point(f"policy {i}", "t0", 1.0 + i / 1000, 2.0) for i in range(8)] + [Point("apart", "t1", 2.0, 1.0)]
    svg = scatter(crowd, x_label="x", y_label="y")
    names = [each.text for each in shapes(svg, "text") if each.get("class") == "label"]
    assert "apart" in names
    assert 1 < len(names) < 6
    assert len(shapes(svg, "circle")) == len(crowd)


def test_powers_of_ten_are_as_far_apart_as_each_other():
    line = Line("a", "t0", [(0.001, 0.1), (0.1, 0.2), (1.0, 0.5), (10.0, 1.0)])
    svg = lines([line], x_label="x", y_label="y", log=True)
    drawn = next(each for each in shapes(svg, "path") if "line" in each.get("class")).get("d")
    xs = [float(each.split()[0]) for each in drawn.replace("M", "L").split("L")[1:]]
    assert len(xs) == 3  # what is below a hundredth is left out
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.1)
    ticks = [each.text for each in shapes(svg, "text") if each.get("class") == "tick"]
    assert ticks[:7] == ["0.10", "0.20", "0.50", "1", "2", "5", "10"]


def test_many_gpus_are_drawn_as_groups_of_neighbors():
    trace = traces.load("t1")
    some = trace.changed([trace[i] for i in range(3)])
    setting = Experiment(trace=some, cluster=cluster.parse("40xA100-40GB"), config=SimulationConfig(record=True))
    found = evaluate(setting, ["exclusive"])
    page = over_time(found, {"exclusive": "base"})
    assert "SM activity of every GPU over time, 40 in 16 groups" in page
    assert page.count(">GPUs 0 to 1<") == 1
    assert page.count(">GPUs 37 to 39<") == 1
    unrecorded = Experiment(trace=some, cluster=setting.cluster, config=SimulationConfig())
    assert over_time(evaluate(unrecorded, ["exclusive"]), {}) == ""


def test_small_numbers_keep_a_digit():
    assert [number(each) for each in (0.0, 0.0023, 0.05, 0.25)] == ["0", "0.002", "0.05", "0.25"]


def test_front_joins_what_nothing_betters():
    svg = scatter([Point("a", "t0", 1, 3), Point("b", "t1", 2, 2), Point("c", "t2", 3, 3)], x_label="x", y_label="y")
    front = next(each for each in shapes(svg, "path") if each.get("class") == "front").get("d")
    assert front.count("L") == 1
    a, b, _ = sorted(shapes(svg, "circle"), key=lambda each: float(each.get("cx")))
    assert front == f"M{a.get('cx')} {a.get('cy')}L{b.get('cx')} {b.get('cy')}"


def test_lines_start_at_nothing():
    svg = lines([Line("a", "t0", [(0.0, 0.0), (1.0, 1.0)])], x_label="x", y_label="y")
    path = next(each for each in shapes(svg, "path") if "line" in each.get("class")).get("d")
    assert path.startswith("M58.0 296.0")


def test_strips_are_as_long_as_their_run():
    full = strips([Strip("GPU 0", [0.5] * 10)], lasted=10, of=10)
    half = strips([Strip("GPU 0", [0.5, 0.0] * 5)], lasted=5, of=10)
    tracks = [float(shapes(each, "rect")[0].get("width")) for each in (full, half)]
    assert tracks[0] == pytest.approx(2 * tracks[1])
    assert len(shapes(half, "rect")) == 6


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (123.4, "123"), (12.34, "12.3"), (0.5, "0.50"), (float("nan"), "-"), (7.0, "7")],
)
def test_numbers(value, text):
    assert number(value) == text
