"""Watts of a simulated GPU, from who is on it."""

from __future__ import annotations

import pytest

from cotenant.sim.interference import TrueActivity
from cotenant.sim.power import busy, power_model


@pytest.mark.parametrize(
    ("utilization", "watts"),
    [
        pytest.param(0.7532, 218.0, id="philly, exclusive"),
        pytest.param(0.8792, 252.4, id="philly, Lucid"),
        pytest.param(0.9511, 262.6, id="philly, AEGIS"),
        pytest.param(0.7474, 212.9, id="saturn, exclusive"),
        pytest.param(0.9271, 257.3, id="venus, AEGIS with measured peaks"),
    ],
)
def test_a100_within_six_watts_of_published_means(utilization, watts):
    assert power_model("A100-40GB").watts(1, utilization) == pytest.approx(watts, abs=6.0)


def test_idle_draws_little():
    assert power_model("A100-80GB").watts(0, 0.0) == 49.5


def test_unmeasured_cards_have_the_parts_of_the_a100():
    t4, a100 = power_model("T4-16GB"), power_model("A100-40GB")
    assert t4.origin == "assumed"
    assert t4.watts(1, 1.0) / 70 == pytest.approx(a100.watts(1, 1.0) / 400)
    assert power_model("Unheard-9GB").watts(0, 0.0) > 0


def test_instances_share_the_watts_of_a_gpu():
    whole = power_model("A100-40GB").watts(1, 0.8)
    parts = [power_model(f"A100-40GB/{each}").watts(1, 0.8) for each in ("4g.20gb", "3g.20gb")]
    assert sum(parts) == pytest.approx(whole)


@pytest.mark.parametrize(
    ("members", "part"),
    [
        pytest.param([], 0.0, id="nobody"),
        pytest.param([None], 0.0, id="nothing known of it"),
        pytest.param([TrueActivity(None, 0.5, utilization=0.75)], 0.75, id="as measured"),
        pytest.param([TrueActivity(None, 0.25)], 0.5, id="from SM activity"),
        pytest.param([TrueActivity(None, 0.5, utilization=0.75)] * 2, 0.9375, id="at times of their own"),
    ],
)
def test_busy(members, part):
    assert busy(members) == pytest.approx(part)
