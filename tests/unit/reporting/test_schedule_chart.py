"""Runs as bars in lanes, and arrows between the runs of a job."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from cotenant.reporting.schedule_chart import LANE, ScheduledRun, assign_lanes, schedule


@pytest.mark.parametrize(
    ("spans", "lanes"),
    [
        pytest.param([], [], id="none"),
        pytest.param([(0, 1), (1, 2)], [0, 0], id="one after the other"),
        pytest.param([(0, 3), (1, 2), (1, 4), (2, 5)], [0, 1, 2, 1], id="the first lane that is free"),
        pytest.param([(0, 9), (1, 2), (3, 4)], [0, 1, 1], id="a long one keeps its lane"),
        pytest.param([(0, 9), (1, 3), (2, 9), (3, 4), (3.5, 5)], [0, 1, 2, 1, 3], id="and one in the last lane"),
    ],
)
def test_overlapping_spans_are_in_different_lanes(spans, lanes):
    assert assign_lanes(spans) == lanes


def drawn(*runs, rows=("GPU 0", "GPU 1")):
    return ET.fromstring(schedule(runs, rows, axis_end=10.0, unit="h"))


def bars(chart):
    return [element for element in chart.iter() if re.fullmatch(r"t\d+", element.get("class", ""))]


def arrows(chart):
    """Begin and end of each arrow, as (x, y, x, y)."""
    paths = [element.get("d") for element in chart.iter() if element.get("class") == "move"]
    return [[float(part) for part in re.findall(r"[\d.]+", path.partition("m")[0])] for path in paths]


def test_an_arrow_leads_from_the_end_of_a_moved_run_to_the_next_of_its_job():
    chart = drawn(
        ScheduledRun(0, 7, 0.0, 4.0, goes_on=True),
        ScheduledRun(1, 7, 5.0, 9.0, goes_on=False),
        ScheduledRun(1, 8, 0.0, 5.0, goes_on=False),
    )
    first, other, second = bars(chart)  # by row, and by time in a row
    assert first.get("class") == second.get("class") != other.get("class")
    ((x0, y0, x1, y1),) = arrows(chart)
    assert (x0, x1) == pytest.approx(
        (float(first.get("x")) + float(first.get("width")), float(second.get("x"))), abs=0.11
    )
    assert (y0, y1) == (float(first.get("y")) - 1 + LANE / 2, float(second.get("y")) - 1 + LANE / 2)
    assert y1 > y0


@pytest.mark.parametrize(
    "runs",
    [
        pytest.param([ScheduledRun(0, 7, 0, 4, False), ScheduledRun(1, 7, 5, 9, False)], id="a retry"),
        pytest.param([ScheduledRun(0, 7, 0, 4, True)], id="it has not started again"),
        pytest.param([ScheduledRun(0, 7, 0, 4, False), ScheduledRun(1, 7, 0, 4, False)], id="a gang"),
        pytest.param([ScheduledRun(0, 7, 0, 4, True), ScheduledRun(1, 8, 5, 9, False)], id="another job"),
    ],
)
def test_nothing_else_has_an_arrow(runs):
    assert arrows(drawn(*runs)) == []


def test_rows_do_not_overlap():
    chart = drawn(*(ScheduledRun(0, job, 0.0, 5.0, False) for job in range(3)), ScheduledRun(1, 9, 0.0, 5.0, False))
    first, second = (element for element in chart.iter() if element.get("class") == "track")
    assert float(first.get("y")) + float(first.get("height")) < float(second.get("y"))
    assert float(first.get("height")) == 3 * LANE
    assert len({bar.get("y") for bar in bars(chart)}) == 4


def test_a_gang_that_is_moved_has_no_arrow_between_its_gpus():
    chart = drawn(*(ScheduledRun(row, 7, begin, begin + 4, begin == 0) for row in (0, 1) for begin in (0, 5)))
    assert len(arrows(chart)) == 1
