"""Plots of data sets: bins, boxes, cells and dots are where their values are."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from cotenant.reporting.plots import MAX_DOTS, Bin, Dots, bins_of, box_of, boxes, dots, heatmap, histogram


def shapes(svg, tag):
    return [shape for shape in ET.fromstring(svg).iter() if shape.tag == tag]


def test_every_finite_value_is_in_one_bin():
    values = [0.5, 1.5, 1.5, 2.25, 9.75, float("nan"), float("inf")]
    bins = bins_of(values, count=4)
    assert sum(column.size for column in bins) == 5
    assert (bins[0].low, bins[-1].high) == (0.5, 9.75)
    assert [column.size for column in bins] == [4, 0, 0, 1]


def test_bins_of_whole_numbers_hold_equally_many_of_them():
    bins = bins_of(range(1, 101))
    assert {column.high - column.low for column in bins} == {3}
    assert [column.size for column in bins] == [3] * 33 + [1]
    assert bins_of([3, 3, 3]) == [Bin(2.5, 3.5, 3)]
    assert bins_of([]) == []


def test_logarithmic_bins_have_equal_ratios():
    bins = bins_of([1.0, 10.0, 99.0, 100.0], log=True, count=2)
    assert [column.size for column in bins] == [1, 3]
    assert bins[0].high == pytest.approx(10.0)


def test_bars_of_a_histogram_are_as_high_as_their_counts():
    svg = histogram([Bin(0, 1, 2), Bin(1, 2, 4)], x_label="x")
    heights = [float(rect.get("height")) for rect in shapes(svg, "rect")]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.1)


def test_a_box_has_the_quartiles_and_leaves_outliers_beyond_its_whiskers():
    box = box_of([1, 2, 3, 4, 100])
    assert (box.low, box.first, box.median, box.third, box.high) == (1, 2, 3, 4, 4)
    svg = boxes([("a", [1, 2, 3]), ("empty", []), ("b", [4])], label="MiB")
    assert [rect.get("class") for rect in shapes(svg, "rect")] == ["box", "box"]
    assert "a: median 2, quartiles 1.50 to 2.50" in svg


def test_cells_are_as_strong_as_their_values_and_negative_ones_have_another_color():
    svg = heatmap([[1.0, -0.5], [0.0, 0.25]], row_names=["a", "b"], column_names=["a", "b"], low=-1.0)
    cells = [rect for rect in shapes(svg, "rect") if rect.get("class") != "track"]
    assert [cell.get("fill-opacity") for cell in cells] == ["1.00", "0.50", "0.00", "0.25"]
    assert [cell.get("class") for cell in cells] == ["use", "against", "use", "use"]
    assert "a, b: -0.50" in svg
    counted = heatmap([[0.9]], row_names=["a"], column_names=["a"], labels=[["90"]])
    assert [label.text for label in shapes(counted, "text") if label.get("class") == "bright"] == ["90"]


def test_dots_are_at_their_values_and_those_without_a_place_are_left_out():
    points = [(0.0, 0.0), (10.0, 10.0), (float("nan"), 1.0)]
    svg = dots([Dots("jobs", "t0", points)], x_label="x", y_label="y", diagonal=True)
    paths = {path.get("class"): path.get("d") for path in shapes(svg, "path") if path.get("class") != "grid"}
    drawn = [spot.removesuffix("h0").split() for spot in paths["dots large s-t0"].split("M")[1:]]
    assert len(drawn) == 2
    assert paths["front"] == f"M{' '.join(drawn[0])}L{' '.join(drawn[1])}"
    logs = dots([Dots("jobs", "t0", [(0.0, 1.0), (1.0, 1.0)])], x_label="x", y_label="y", x_log=True)
    assert sum(path.get("d").count("h0") for path in shapes(logs, "path")) == 1


def test_of_very_many_dots_evenly_spaced_ones_are_drawn():
    svg = dots([Dots("jobs", "t0", [(i, i) for i in range(3 * MAX_DOTS)])], x_label="x", y_label="y")
    assert sum(path.get("d").count("h0") for path in shapes(svg, "path")) == MAX_DOTS
