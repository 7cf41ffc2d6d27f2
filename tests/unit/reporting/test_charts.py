"""Charts show the numbers they are given: positions and lengths are proportional to values."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from cotenant.reporting.axes import number, short
from cotenant.reporting.charts import Bar, Line, Point, Strip, bars, lines, pareto, strips


def shapes(svg, tag):
    return [shape for shape in ET.fromstring(svg).iter() if shape.tag == tag]


def test_bars_are_as_long_as_their_values():
    svg = bars([Bar("one", "t0", 10.0), Bar("two", "t1", 5.0, 4.0, 8.0), Bar("none", "t2", float("nan"))], unit="s")
    widths = [float(rect.get("width")) for rect in shapes(svg, "rect")]
    assert len(widths) == 2
    assert widths[0] == pytest.approx(2 * widths[1], rel=0.01)
    assert len(shapes(svg, "path")) == 1
    assert "two: 5 s, 95 % of bootstraps 4 to 8" in svg


def test_marks_stand_where_their_values_are():
    svg = bars([Bar("one", "t0", 10.0, mark=5.0), Bar("two", "t1", 8.0)], unit="s")
    (mark,) = [path.get("d") for path in shapes(svg, "path") if path.get("class") == "mark"]
    bar = shapes(svg, "rect")[0]
    assert float(mark[1:].split()[0]) == pytest.approx(float(bar.get("x")) + float(bar.get("width")) / 2, abs=0.1)


def test_labels_without_room_are_left_to_the_tooltip():
    crowd = [Point(f"policy {i}", "t0", 1.0 + i / 1000, 2.0) for i in range(8)] + [Point("apart", "t1", 2.0, 1.0)]
    svg = pareto(crowd, x_label="x", y_label="y")
    names = [label.text for label in shapes(svg, "text") if label.get("class") == "label"]
    assert "apart" in names
    assert 1 < len(names) < 6
    assert len(shapes(svg, "circle")) == len(crowd)


def test_labels_on_both_sides_of_their_points_do_not_overlap():
    svg = pareto([Point("a-long-name", "t0", 1.66, 1), Point("gandiva", "t1", 1.91, 1.01), Point("o", "t2", 1, 2)],
                 x_label="x", y_label="y")  # fmt: skip
    labels = {label.text: label for label in shapes(svg, "text") if label.get("class") == "label"}
    assert labels["gandiva"].get("text-anchor") == "end"
    assert abs(float(labels["gandiva"].get("y")) - float(labels["a-long-name"].get("y"))) >= 12.9


def test_the_front_joins_the_points_that_no_other_beats():
    svg = pareto([Point("a", "t0", 1, 3), Point("b", "t1", 2, 2), Point("c", "t2", 3, 3)], x_label="x", y_label="y")
    front = next(path for path in shapes(svg, "path") if path.get("class") == "front").get("d")
    a, b, _ = sorted(shapes(svg, "circle"), key=lambda circle: float(circle.get("cx")))
    assert front == f"M{a.get('cx')} {a.get('cy')}L{b.get('cx')} {b.get('cy')}"


def test_linear_axes_start_at_zero():
    svg = lines([Line("a", "t0", [(0.0, 0.0), (1.0, 1.0)])], x_label="x", y_label="y")
    path = next(path for path in shapes(svg, "path") if "line" in path.get("class")).get("d")
    assert path == "M58.0 296.0L544.0 12.0"


def test_a_logarithmic_axis_spaces_decades_evenly_and_drops_values_below_a_hundredth():
    line = Line("a", "t0", [(0.001, 0.1), (0.1, 0.2), (1.0, 0.5), (10.0, 1.0)])
    svg = lines([line], x_label="x", y_label="y", log=True)
    path = next(path for path in shapes(svg, "path") if "line" in path.get("class")).get("d")
    xs = [float(point.split()[0]) for point in path.replace("M", "L").split("L")[1:]]
    assert len(xs) == 3
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.1)
    ticks = [label.text for label in shapes(svg, "text") if label.get("class") == "tick"]
    assert ticks[:7] == ["0.10", "0.20", "0.50", "1", "2", "5", "10"]


def test_strips_are_as_long_as_their_run():
    full = strips([Strip("GPU 0", [0.5] * 10)], duration=10, axis_end=10)
    half = strips([Strip("GPU 0", [0.5, 0.0] * 5)], duration=5, axis_end=10)
    tracks = [float(shapes(svg, "rect")[0].get("width")) for svg in (full, half)]
    assert tracks[0] == pytest.approx(2 * tracks[1])
    assert len(shapes(half, "rect")) == 6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346"),
        (123.4, "123"),
        (12.34, "12.3"),
        (7.0, "7"),
        (0.5, "0.50"),
        (0.25, "0.25"),
        (0.05, "0.05"),
        (0.0023, "0.002"),
        (0.0, "0"),
        (float("nan"), "-"),
    ],
)
def test_numbers_have_two_or_three_digits(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(5000.0, "5,000"), (10_000.0, "10k"), (12_500.0, "12.5k"), (2e6, "2M"), (-3e9, "-3G"), (0.5, "0.50")],
)
def test_ticks_of_large_numbers_are_short(value, text):
    assert short(value) == text
