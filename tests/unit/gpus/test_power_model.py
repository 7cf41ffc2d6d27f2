"""Power of a GPU by its type and the share of time in which it is busy."""

from __future__ import annotations

import pytest

from cotenant.gpus.power_model import power_model


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


def test_an_empty_a100_draws_its_idle_power():
    assert power_model("A100-80GB").watts(0, 0.0) == 49.5


def test_unmeasured_gpus_draw_the_shares_of_the_a100():
    t4, a100 = power_model("T4-16GB"), power_model("A100-40GB")
    assert t4.origin == "assumed"
    assert t4.watts(1, 1.0) / 70 == pytest.approx(a100.watts(1, 1.0) / 400)
    assert power_model("Unheard-9GB").watts(0, 0.0) > 0


def test_mig_instances_share_the_power_of_their_gpu():
    whole = power_model("A100-40GB").watts(1, 0.8)
    parts = [power_model(f"A100-40GB/{profile}").watts(1, 0.8) for profile in ("4g.20gb", "3g.20gb")]
    assert sum(parts) == pytest.approx(whole)
