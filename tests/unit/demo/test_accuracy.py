"""Errors of estimates."""

from __future__ import annotations

import pytest

from cotenant.core.stats import quantile
from cotenant.demo.accuracy import signed_error, summarize_errors


@pytest.mark.parametrize(
    ("estimated", "measured", "error"),
    [
        pytest.param(110, 100, 0.1, id="too high"),
        pytest.param(75, 100, -0.25, id="too low"),
        pytest.param(100, 100, 0.0, id="right"),
        pytest.param(50, 200, -0.75, id="relative to the measured value"),
    ],
)
def test_the_error_is_signed(estimated, measured, error):
    assert signed_error(estimated, measured) == pytest.approx(error)


@pytest.mark.parametrize(
    ("values", "share", "wanted"),
    [
        pytest.param([7.0], 0.95, 7.0, id="one value"),
        pytest.param([3.0, 1.0, 2.0], 0.5, 2.0, id="the middle, whatever the order"),
        pytest.param([0.0, 10.0], 0.95, 9.5, id="between two"),
        pytest.param([1.0, 2.0, 3.0], 1.0, 3.0, id="the largest"),
        pytest.param([1.0, 2.0, 3.0], 0.0, 1.0, id="the smallest"),
    ],
)
def test_percentiles_interpolate(values, share, wanted):
    assert quantile(values, share) == pytest.approx(wanted)


def test_summary_is_of_sizes_and_counts_low_ones():
    summary = summarize_errors([-0.4, 0.1, 0.1, 0.2])
    assert summary is not None
    assert (summary.count, summary.low) == (4, 1)
    assert summary.median == pytest.approx(0.15)
    assert summary.mean == pytest.approx(0.2)
    assert summary.worst == pytest.approx(0.4)
    assert summary.p95 == pytest.approx(0.2 + 0.85 * 0.2)


def test_summary_of_nothing_is_none():
    assert summarize_errors([]) is None
