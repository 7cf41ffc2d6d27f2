"""Means and quantiles of a few numbers."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.stats import mean, mean_of_known, median, quantile

NUMBERS = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("values", "q", "wanted"),
    [
        ([3.0, 1.0, 2.0], 0.0, 1.0),
        ([3.0, 1.0, 2.0], 1.0, 3.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([4.0, 1.0, 2.0, 3.0], 0.5, 2.5),
        ([0.0, 10.0], 0.95, 9.5),
        ([7.0], 0.3, 7.0),
    ],
)
def test_quantiles_are_linear_between_neighbors(values, q, wanted):
    assert quantile(values, q) == pytest.approx(wanted)


@given(NUMBERS, st.floats(0, 1))
def test_a_quantile_lies_between_the_smallest_and_the_largest_value(values, q):
    slack = 1e-6 * max(map(abs, values))
    assert min(values) - slack <= quantile(values, q) <= max(values) + slack


@given(NUMBERS)
def test_the_median_is_that_of_the_standard_library(values):
    assert median(values) == pytest.approx(statistics.median(values), abs=1e-6)
    assert mean(values) == pytest.approx(statistics.fmean(values), abs=1e-6)


def test_empty_data_has_no_mean_and_no_quantile():
    assert math.isnan(mean([]))
    assert math.isnan(quantile([], 0.5))
    assert mean_of_known([]) is None


def test_unknown_values_are_skipped():
    assert mean_of_known([1.0, None, 3.0]) == 2.0
    assert mean_of_known([None, None]) is None
