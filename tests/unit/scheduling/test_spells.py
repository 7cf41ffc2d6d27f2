from __future__ import annotations

import pytest

from cotenant.core.gpu import GpuSample
from cotenant.scheduling.spells import MOST_SPELLS, Spells


def sample(smact=0.5, **measures):
    return GpuSample(at_s=0.0, used_bytes=1, smact=smact, **measures)


def test_time_and_means_are_kept_for_each_company():
    spells = Spells()
    spells.note((), 10.0, sample(0.2, drama=0.1), None)
    spells.note((), 30.0, sample(0.6, drama=0.1), 4.0)
    spells.note((7,), 20.0, sample(0.9), 2.0)
    alone, shared = spells.longest()
    assert (alone.mates, alone.seconds, alone.steps_hz) == ((), 40.0, 4.0)
    assert (alone.smact, alone.drama) == pytest.approx((0.5, 0.1))
    assert (shared.mates, shared.smact, shared.steps_hz) == ((7,), pytest.approx(0.9), 2.0)


def test_a_measure_that_was_missing_is_missing():
    spells = Spells()
    spells.note((), 10.0, sample(0.2), None)
    spells.note((), 10.0, sample(None), float("nan"))
    (spell,) = spells.longest()
    assert (spell.smact, spell.smocc, spell.steps_hz) == (None, None, None)


def test_short_spells_are_left_out_and_the_longest_kept():
    spells = Spells()
    for each in range(40):
        spells.note((each,), 9.0 + each, sample(), None)
    longest = spells.longest()
    assert len(longest) == MOST_SPELLS
    assert [each.mates for each in longest[:2]] == [(39,), (38,)]
    brief = Spells()
    brief.note((), 9.9, sample(), None)
    assert brief.longest() == ()


def test_memory_of_many_companies_is_bounded():
    spells = Spells()
    spells.note((1,), 500.0, sample(), None)
    for each in range(1000):
        spells.note((2, each), 1.0, sample(), None)
    assert len(spells._sums) <= 4 * MOST_SPELLS
    assert spells.longest()[0].mates == (1,)
