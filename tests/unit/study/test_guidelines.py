"""The guidelines of collocation on rows."""

from cotenant.study.guidelines import (
    CollocationRow,
    above_costs,
    judge_guidelines,
    memory_adds_up,
    mig_saves_energy,
    mps_is_best,
    published_collocations,
    smact_bounds_slowdown,
    smact_pays,
)


def row(*jobs, sharing="time-sliced", source="test", **figures):
    return CollocationRow(jobs=jobs or ("a", "b"), sharing=sharing, source=source, **figures)


def test_collocation_pays_up_to_the_limit():
    found = smact_pays(
        [
            row(gain=1.2, smact_sum=0.8),
            row("c", "d", gain=0.9, smact_sum=0.1),
            row(gain=0.5, smact_sum=0.81),
            row(gain=9),
        ]
    )
    assert (found.held, found.tested) == (1, 2)
    assert found.exceptions == ("c + d (0.90)",)
    assert "held in 1 of 2, mean gain 1.05; not for c + d (0.90)." in found.text


def test_above_the_limit_a_gain_is_an_exception():
    found = above_costs([row(gain=1.5, smact_sum=0.9), row(gain=1.0, smact_sum=1.9), row(gain=1.5, smact_sum=None)])
    assert (found.held, found.tested, found.exceptions) == (1, 2, ("a + b (1.50)",))


def test_slowdown_is_that_of_the_job_that_suffers_most():
    found = smact_bounds_slowdown([row(slowdown=1.5, smact_sum=0.5), row(slowdown=1.6, smact_sum=0.5)])
    assert (found.held, found.tested, found.exceptions) == (1, 2, ("a + b (1.60)",))


def test_memory_adds_up_within_five_percent():
    cases = [row(memory_bytes=104.0, memory_sum_bytes=100.0), row(memory_bytes=94.0, memory_sum_bytes=100.0), row()]
    found = memory_adds_up(cases)
    assert (found.held, found.tested, found.exceptions) == (1, 2, ("a + b (-6%)",))


def test_ways_to_share_are_compared_for_the_same_jobs_of_the_same_source():
    rows = [
        row("a", "b", sharing="mps", gain=1.3),
        row("b", "a", sharing="time-sliced", gain=1.2),
        row("a", "b", sharing="time-sliced", gain=2.0, source="other"),
        row("c", "d", sharing="mps", gain=1.0),
    ]
    assert (mps_is_best(rows).held, mps_is_best(rows).tested) == (1, 1)
    equal = [row(sharing="mps", gain=1.2), row(sharing="time-sliced", gain=1.2)]
    assert mps_is_best(equal).held == 1
    energies = [row(sharing="mig", energy_ratio=0.9), row(sharing="mps", energy_ratio=0.8)]
    assert (mig_saves_energy(energies).held, mig_saves_energy(energies).tested) == (0, 1)
    assert mig_saves_energy(energies[:1]).tested == 0, "compared with nothing"


def test_no_row_is_no_verdict():
    assert all(found.text.endswith("no row to test it on.") for found in judge_guidelines([]))


def test_published_pairs_pay_below_and_above_the_limit():
    below, above, slowdown, memory, mps, _ = judge_guidelines(published_collocations())
    assert (below.held, below.tested) == (69, 69)
    assert (above.held, above.tested) == (0, 141), "the limit is careful: every published pair gains above it, too"
    assert slowdown.held == slowdown.tested == 69
    assert (memory.held, memory.tested) == (3, 3)
    assert (mps.held, mps.tested) == (1, 1)
