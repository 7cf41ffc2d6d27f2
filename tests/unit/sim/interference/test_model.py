"""Speeds of jobs that share a GPU: the rule's arithmetic, and how well it fits what was measured."""

from __future__ import annotations

import statistics

import pytest

from cotenant.sim.interference import Collocation, PairTable, SmactPowerLaw, TrueActivity
from cotenant.sim.interference.sources import MeasuredCosts
from cotenant.sim.workloads import pair_speeds, workloads


def loads(*smacts):
    return [TrueActivity(None, smact) for smact in smacts]


def test_a_job_alone_runs_at_full_speed():
    assert SmactPowerLaw().speeds(loads(0.9)) == [1.0]
    assert PairTable({}).speeds(loads(1.0)) == [1.0]
    assert PairTable({}).speeds([]) == []


@pytest.mark.parametrize(
    ("partner", "speed"),
    [(0.0, 1.0), (0.5, 0.92), (0.7, 0.72), (0.8, 0.58), (0.9, 0.45)],
)
def test_the_power_law_gives_the_cost(partner, speed):
    """The speeds that the policy study gives for these partners."""
    assert SmactPowerLaw().speeds(loads(0.1, partner))[0] == pytest.approx(speed, abs=0.01)


PAIRS_OF_THREE = {(v, p): 0.5 if "a" in (v, p) else 0.8 for v in "abc" for p in "abc" if v != p}


def test_costs_of_neighbors_add_up():
    speeds = PairTable(PAIRS_OF_THREE).speeds([TrueActivity(name, 0.1) for name in "abc"])
    assert speeds == pytest.approx([1 / 3, 1 / 2.25, 1 / 2.25])


def test_costs_of_neighbors_multiply():
    model = Collocation([MeasuredCosts(PAIRS_OF_THREE)], combine="multiplicative")
    assert model.speeds([TrueActivity(name, 0.1) for name in "abc"]) == pytest.approx([1 / 4, 1 / 2.5, 1 / 2.5])


def test_total_sm_activity_is_at_most_one():
    together = loads(0.9, 0.5)
    speeds = SmactPowerLaw().speeds(together)
    assert sum(load.smact * speed for load, speed in zip(together, speeds, strict=True)) == pytest.approx(1.0)
    alone = [1 / (1 + 1.94 * partner**4.44) for partner in (0.5, 0.9)]
    assert speeds[0] / speeds[1] == pytest.approx(alone[0] / alone[1])


@pytest.mark.parametrize(
    ("smacts", "total", "line"),
    [
        pytest.param((0.1, 0.1, 0.1), 2.8, 2.26 - 0.63 * 0.3, id="light jobs"),
        pytest.param((0.5, 0.5, 0.5), 2.0, 2.26 - 0.63 * 1.5, id="medium jobs: all SMs are in use"),
        pytest.param((0.6,) * 5, 1 / 0.6, 1.0, id="the line ends at 1, where five ImageNet jobs were seen at 1.67"),
    ],
)
def test_the_slowdown_of_more_than_two_jobs_is_capped(smacts, total, line):
    assert sum(Collocation([]).speeds(loads(*smacts))) == pytest.approx(total)
    assert sum(Collocation([], ceiling="line").speeds(loads(*smacts))) == pytest.approx(line)


def test_heavy_jobs_slow_each_other_below_an_equal_share():
    law = SmactPowerLaw()
    assert law.speeds(loads(0.95, 0.95, 0.95))[0] == pytest.approx(min(1 / (1 + 2 * 1.94 * 0.95**4.44), 1 / 3))


def test_hidden_sensitivity_scales_the_cost_of_neighbors():
    table = PairTable(PAIRS_OF_THREE)
    tender, other = TrueActivity("a", 0.1, sensitivity=2.0), TrueActivity("b", 0.1)
    assert table.speeds([tender, other]) == pytest.approx([1 / 3, 1 / 2])


def test_a_measured_pair_keeps_its_measured_speed():
    table = PairTable({("a", "b"): 0.9, ("b", "a"): 0.8})
    assert table.speeds([TrueActivity("b", 1.0), TrueActivity("a", 1.0)]) == pytest.approx([0.8, 0.9])


def test_no_neighbor_speeds_a_job_up():
    assert (
        PairTable({("a", "b"): 1.1, ("b", "a"): 1.0}).speeds([TrueActivity("a", 0.1), TrueActivity("b", 0.1)])[0] == 1.0
    )


def test_an_unmeasured_pair_uses_the_fallback():
    known = PairTable({("a", "b"): 0.5, ("b", "a"): 0.5})
    assert known.speeds([TrueActivity("a", 0.3), TrueActivity(None, 0.7)]) == SmactPowerLaw().speeds(loads(0.3, 0.7))


def measured():
    known = workloads()
    for (first, second), speed in pair_speeds().items():
        yield TrueActivity(first, known[first].smact), TrueActivity(second, known[second].smact), speed


def test_the_pair_table_returns_measured_speeds():
    table = PairTable(pair_speeds())
    for first, second, speed in measured():
        assert table.speeds([first, second])[0] == pytest.approx(min(1.0, speed))


def test_power_law_fits_the_pairs():
    """The policy study reports R2 0.69 and a mean error of 0.075 for this form."""
    law = SmactPowerLaw()
    rows = [(law.speeds([first, second])[0], speed) for first, second, speed in measured()]
    errors = [abs(modeled - speed) for modeled, speed in rows]
    mean = statistics.mean(speed for _, speed in rows)
    unexplained = sum((modeled - speed) ** 2 for modeled, speed in rows)
    total = sum((speed - mean) ** 2 for _, speed in rows)
    assert statistics.mean(errors) < 0.077
    assert 1 - unexplained / total > 0.68
