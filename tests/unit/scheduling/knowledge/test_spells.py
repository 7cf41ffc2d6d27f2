from __future__ import annotations

import json

import pytest

from cotenant.core.gpu import GpuSample
from cotenant.scheduling.telemetry.co_run import MAX_CO_RUNS, CoRunAccumulator


def sample(smact=0.5, **measures):
    return GpuSample(at_s=0.0, used_bytes=1, smact=smact, **measures)


def test_time_and_means_are_kept_for_each_company():
    spells = CoRunAccumulator()
    spells.note((), 10.0, sample(0.2, drama=0.1), None)
    spells.note((), 30.0, sample(0.6, drama=0.1), 4.0)
    spells.note((7,), 20.0, sample(0.9), 2.0)
    alone, shared = spells.longest()
    assert (alone.neighbor_ids, alone.seconds, alone.steps_hz) == ((), 40.0, 4.0)
    assert (alone.smact, alone.drama) == pytest.approx((0.5, 0.1))
    assert (shared.neighbor_ids, shared.smact, shared.steps_hz) == ((7,), pytest.approx(0.9), 2.0)


def test_activity_in_one_company_is_told_if_it_lasted():
    spells = CoRunAccumulator()
    spells.note((), 6.0, sample(0.2), None)
    assert spells.smact_of(()) is None
    spells.note((), 6.0, sample(0.4), None)
    spells.note((7,), 20.0, sample(None), None)
    assert spells.smact_of(()) == pytest.approx(0.3)
    assert spells.smact_of((7,)) is None
    assert spells.smact_of((8,)) is None


def test_a_measure_that_was_missing_is_missing():
    spells = CoRunAccumulator()
    spells.note((), 10.0, sample(0.2), None)
    spells.note((), 10.0, sample(None), float("nan"))
    (spell,) = spells.longest()
    assert (spell.smact, spell.smocc, spell.steps_hz) == (None, None, None)


def test_a_measure_that_was_missing_now_and_then_is_the_mean_of_the_rest():
    spells = CoRunAccumulator()
    for each in (0.2, None, 0.2, float("nan"), *[0.4] * 6):
        spells.note((), 10.0, sample(each), None)
    (spell,) = spells.longest()
    assert spell.smact == pytest.approx((0.2 * 2 + 0.4 * 6) / 8)


def at(at_s):
    return GpuSample(at_s=at_s, used_bytes=1, smact=0.5)


@pytest.mark.parametrize(
    ("readings", "rates"),  # readings as (time, mates, steps a second, over so many seconds); 10 s apart
    [
        pytest.param([(10, (), 4.0, 10.0)], {(): 4.0}, id="over the reading"),
        pytest.param([(10, (), None, None), (20, (), 4.0, 20.0)], {(): 4.0}, id="over two"),
        pytest.param([(10, (), 4.0, 10.0), (20, (), 1.0, 5.0)], {(): 3.0}, id="weighed by the time it is over"),
        pytest.param([(10, (), 9.0, 10.0), (20, (7,), 4.0, 20.0)], {(): 9.0, (7,): None}, id="into another company"),
        pytest.param([(10, (), None, None), (40, (), 4.0, 30.0)], {(): None}, id="into a time that was not noted"),
        pytest.param(
            [(10, (7,), 9.0, 10.0), (20, (), 9.0, 10.0), (30, (7,), 4.0, 30.0)], {(7,): 9.0, (): 9.0}, id="over one"
        ),
        pytest.param([(10, (), 4.0, 0.0)], {(): None}, id="over no time"),
        pytest.param([(10, (), 4.0, float("nan"))], {(): None}, id="over nobody knows what"),
    ],
)
def test_a_step_rate_counts_where_one_company_had_all_of_its_time(readings, rates):
    spells = CoRunAccumulator()
    for at_s, neighbor_ids, steps_hz, steps_s in readings:
        spells.note(neighbor_ids, 10.0, at(at_s), steps_hz, steps_s)
    assert {each.neighbor_ids: each.steps_hz for each in spells.longest()} == rates


def test_what_it_does_now_is_of_its_last_company():
    spells = CoRunAccumulator()
    assert spells.now() is None
    spells.note((), 20.0, sample(0.3), None)
    spells.note((7,), 9.0, sample(0.9), None)
    assert spells.now() is None, "too short"
    spells.note((7,), 2.0, sample(0.9), 5.0)
    now = spells.now()
    assert (now.neighbor_ids, now.seconds, now.steps_hz) == ((7,), 11.0, 5.0)


def test_state_is_taken_over_as_it_was():
    spells = CoRunAccumulator()
    spells.note((), 20.0, sample(0.3), 4.0)
    spells.note((7, 8), 30.0, sample(0.9, drama=0.2), None)
    again = CoRunAccumulator()
    again.restore(json.loads(json.dumps(spells.state())))
    assert again.longest() == spells.longest()


def test_short_spells_are_left_out_and_the_longest_kept():
    spells = CoRunAccumulator()
    for each in range(40):
        spells.note((each,), 9.0 + each, sample(), None)
    longest = spells.longest()
    assert len(longest) == MAX_CO_RUNS
    assert [each.neighbor_ids for each in longest[:2]] == [(39,), (38,)]
    brief = CoRunAccumulator()
    brief.note((), 9.9, sample(), None)
    assert brief.longest() == ()


def test_memory_of_many_companies_is_bounded():
    spells = CoRunAccumulator()
    spells.note((1,), 500.0, sample(), None)
    for each in range(1000):
        spells.note((2, each), 1.0, sample(), None)
    assert len(spells._sums) <= 4 * MAX_CO_RUNS
    assert spells.longest()[0].neighbor_ids == (1,)
