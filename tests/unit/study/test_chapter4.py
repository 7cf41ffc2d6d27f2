"""Figures of chapter 4: published values beside measured ones."""

import pytest

from cotenant.measurement.collocation import COLUMNS
from cotenant.measurement.job_list import group_text
from cotenant.reporting.page import Page
from cotenant.study.chapter4 import FIGURES, MeasuredValue, add_figures, measured_values, published_values
from cotenant.study.guidelines import published_collocations


def a_row(jobs, sharing, **cells):
    values = {"group": "+".join(jobs), "job": jobs[0], "sharing": sharing, "until": "seconds", "outcome": "ok", **cells}
    return {name: str(values.get(name, "")) for name in COLUMNS}


ROWS = [
    a_row(["small-b32"], "alone", step_s=0.1, power_w=100, smact=0.2, peak_device_bytes=1000, pcie_rx_bytes_s=2**20),
    *[
        a_row(["small-b32"] * 2, "mps", step_s=0.12, power_w=150, smact=0.4, peak_device_bytes=2100,
              pcie_rx_bytes_s=3 * 2**20)
        for _ in range(2)
    ],
    a_row(["small-b32", "large"], "mps", step_s=9, power_w=900),
    a_row(["small-b32"] * 2, "time-sliced", outcome="oom"),
]  # fmt: skip


def test_measured_values_are_of_the_job_and_others_of_its_kind():
    found = {(value.sharing, value.degree, value.quantity): value.value for value in measured_values(ROWS, "small-b32")}
    assert found["alone", 1, "epoch_ratio"] == 1.0
    assert found["mps", 2, "epoch_ratio"] == pytest.approx(1.2)
    assert found["mps", 2, "memory_ratio"] == pytest.approx(2.1)
    assert found["mps", 2, "pcie_rx_bytes_s"] == pytest.approx(3.0)
    # 150 W for 1.2 times as long, in place of 100 W for each of two.
    assert found["mps", 2, "energy_ratio"] == pytest.approx(0.9)
    assert {key[0] for key in found} == {"alone", "mps"}, "no value of a run that failed"
    assert measured_values(ROWS, "cait") == []
    assert MeasuredValue("mps", 2, "power_w", 150.0) in measured_values(ROWS, "small-b32")


def test_every_published_value_belongs_to_a_figure_and_a_quantity_of_it():
    quantities = {figure.number: figure.quantities for figure in FIGURES}
    for value in published_values():
        if value.figure != "table 4.2":
            assert value.quantity in quantities[value.figure]
        assert (value.low is None) == (value.high is None)
        assert value.low is not None or value.words


def test_the_page_has_all_figures_and_says_what_was_not_published(tmp_path):
    page = Page("x")
    add_figures(page, ROWS, tmp_path, published_collocations())
    text = page.text()
    for number in range(1, 14):
        assert f"Figure 4.{number}:" in text
    assert "mps, 3 jobs, published 1.5 to 2.1" in text
    assert "mps, 2 jobs, measured" in text
    assert "not published in numbers: PCIe" in text
    assert "not measured here: job <code>cait</code>" in text
    assert "207 pairs" in text
    for name in ("sum up to 80%", "above 80%"):
        assert f"{name}</span>" in text, "a legend names the colors"


def test_equal_jobs_are_counted():
    assert group_text(["a", "a", "b", "a"]) == "2 x a + b + a"
