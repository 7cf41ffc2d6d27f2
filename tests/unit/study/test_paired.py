"""Ratios of paired measurements."""

import math

import pytest

from cotenant.study.paired import T_975, paired_ratio


def test_the_mean_is_geometric():
    ratio = paired_ratio([(2.0, 1.0), (1.0, 2.0)])
    assert ratio.mean == pytest.approx(1.0)


def test_the_interval_is_students_t_on_logarithms():
    logs = [0.1, 0.2, 0.3]
    ratio = paired_ratio([(math.exp(value), 1.0) for value in logs])
    half = 4.303 * 0.1 / math.sqrt(3)  # two degrees of freedom, standard deviation 0.1
    assert ratio == (
        pytest.approx(math.exp(0.2)), pytest.approx(math.exp(0.2 - half)), pytest.approx(math.exp(0.2 + half)), 3,
    )  # fmt: skip


def test_one_pair_has_no_interval_and_none_no_ratio():
    assert paired_ratio([(3.0, 2.0)]) == (pytest.approx(1.5), None, None, 1)
    assert paired_ratio([]) is None
    assert paired_ratio([(0.0, 1.0), (1.0, 0.0)]) is None


def test_quantiles_of_t_agree_with_scipy():
    scipy_stats = pytest.importorskip("scipy.stats")
    for freedom, value in enumerate(T_975, start=1):
        assert value == pytest.approx(scipy_stats.t.ppf(0.975, freedom), abs=6e-4)
