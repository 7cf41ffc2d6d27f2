"""Speeds of jobs that share a GPU: the rule's arithmetic, and how well it fits what was measured."""

from __future__ import annotations

import statistics

import pytest

from cotenant.sim.interference import Load, PairTable, SmactPowerLaw
from cotenant.sim.workloads import pair_speeds, workloads


def loads(*smacts):
    return [Load(None, each) for each in smacts]


def test_alone():
    assert SmactPowerLaw().speeds(loads(0.9)) == [1.0]
    assert PairTable({}).speeds(loads(1.0)) == [1.0]
    assert PairTable({}).speeds([]) == []


@pytest.mark.parametrize(
    ("partner", "speed"),
    [(0.0, 1.0), (0.5, 0.92), (0.7, 0.72), (0.8, 0.58), (0.9, 0.45)],
)
def test_power_law(partner, speed):
    """The speeds that the policy study gives for these partners."""
    assert SmactPowerLaw().speeds(loads(0.1, partner))[0] == pytest.approx(speed, abs=0.01)


def test_costs_add_up():
    pairs = {("a", "b"): 0.5, ("a", "c"): 0.8}
    speeds = PairTable(pairs).speeds([Load("a", 0.1), Load("b", 0.1), Load("c", 0.1)])
    assert speeds[0] == pytest.approx(1 / (1 + 1.0 + 0.25))


def test_no_more_than_all_multiprocessors():
    together = loads(0.6, 0.6, 0.6)
    speeds = SmactPowerLaw().speeds(together)
    assert sum(load.smact * speed for load, speed in zip(together, speeds, strict=True)) == pytest.approx(1.0)
    assert len(set(speeds)) == 1


def test_measured_pair_is_taken_as_it_is():
    table = PairTable({("a", "b"): 0.9, ("b", "a"): 0.8})
    assert table.speeds([Load("b", 1.0), Load("a", 1.0)]) == pytest.approx([0.8, 0.9])


def test_no_company_pays_a_job():
    assert PairTable({("a", "b"): 1.1, ("b", "a"): 1.0}).speeds([Load("a", 0.1), Load("b", 0.1)])[0] == 1.0


def test_pair_that_was_not_measured_falls_back():
    known = PairTable({("a", "b"): 0.5, ("b", "a"): 0.5})
    assert known.speeds([Load("a", 0.3), Load(None, 0.7)]) == SmactPowerLaw().speeds(loads(0.3, 0.7))


def measured():
    known = workloads()
    for (first, second), speed in pair_speeds().items():
        yield Load(first, known[first].smact), Load(second, known[second].smact), speed


def test_table_gives_what_was_measured():
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
