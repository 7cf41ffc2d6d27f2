"""How many allocations a pilot requests, and which it gives back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.hosts.pilot_decision import (
    MAX_FAILURES,
    QUEUED,
    START_TIMEOUT_S,
    AllocationStatus,
    Decision,
    PilotLimits,
    Record,
    decide,
)

NOW_S = 10_000.0
LIMITS = PilotLimits(min_allocations=0, max_allocations=8, backlog=4, idle_s=300.0, retry_s=60.0)
TRIED = Record(is_tried=True)


def limits(**changes):
    return PilotLimits(**{**{name: getattr(LIMITS, name) for name in LIMITS.__slots__}, **changes})


def an_allocation(phase, name="a", *, idle_s=None, age_s=10.0, left_s=math.inf):
    idle_since_s = None if idle_s is None else NOW_S - idle_s
    return AllocationStatus(name=name, phase=phase, since_s=NOW_S - age_s, idle_since_s=idle_since_s, left_s=left_s)


def requested(waiting, *allocations, limits=LIMITS, record=TRIED):
    """Requests for so many jobs without a time limit, or for jobs with these limits."""
    limits_s = [0.0] * waiting if isinstance(waiting, int) else waiting
    return decide(limits, limits_s, allocations, record, NOW_S).requests


def test_nothing_is_requested_while_nothing_waits():
    assert decide(LIMITS, [], [], TRIED, NOW_S) == Decision()


@pytest.mark.parametrize(
    ("waiting", "phases", "wanted"),
    [
        (1, [], 1),
        (2, [], 2),
        (9, [], 4),  # the backlog
        (9, ["pending"] * 3, 1),
        (9, ["requested", "pending", "starting", "pending"], 0),
        (9, ["ready"] * 3, 4),
        (9, ["ready"] * 6, 2),  # the largest number
        (9, ["ready"] * 7 + ["released"], 0),  # one that is being ended still counts
        (1, ["pending"], 0),  # it is for that job
        (2, ["pending"], 1),
    ],
)
def test_as_many_as_jobs_wait_up_to_the_backlog_and_the_largest_number(waiting, phases, wanted):
    assert requested(waiting, *(an_allocation(phase, str(number)) for number, phase in enumerate(phases))) == wanted


def test_a_trial_is_one_until_an_allocation_has_given_gpus():
    assert requested(9, record=Record()) == 1
    assert requested(9, an_allocation("pending"), record=Record()) == 0


def test_after_a_failure_it_waits_longer_each_time_then_tries_one_and_pauses_in_the_end():
    for failures, pause_s in ((1, 60.0), (2, 120.0)):
        early = Record(is_tried=True, failures=failures, failed_at_s=NOW_S - pause_s + 1)
        late = Record(is_tried=True, failures=failures, failed_at_s=NOW_S - pause_s)
        assert (requested(9, record=early), requested(9, record=late)) == (0, 1)
    assert requested(9, record=Record(is_tried=True, failures=MAX_FAILURES, failed_at_s=0.0)) == 0


def test_what_waits_beside_an_empty_allocation_requests_no_other_one():
    assert requested(5, an_allocation("ready", idle_s=1.0)) == 0
    assert requested(5, an_allocation("ready")) == 4


def test_what_would_outlast_an_empty_allocation_requests_another_one():
    short = an_allocation("ready", idle_s=1.0, left_s=600.0)
    assert [requested([limit_s], short) for limit_s in (0.0, 600.0, 601.0)] == [0, 0, 1]
    assert requested([601.0, 0.0, 900.0], short) == 2
    assert requested([601.0], short, an_allocation("ready", "b", idle_s=1.0, left_s=700.0)) == 0
    assert requested([601.0], short, an_allocation("pending", "b")) == 0


def test_an_empty_allocation_makes_room_for_a_longer_one_where_there_may_be_no_more():
    short, used = an_allocation("ready", idle_s=1.0, left_s=600.0), an_allocation("ready", "b", left_s=600.0)
    two = limits(max_allocations=2)
    assert decide(two, [601.0], [short, used], TRIED, NOW_S) == Decision(too_short=("a",))
    assert decide(two, [601.0, 0.0], [short, used], TRIED, NOW_S) == Decision(), "the other job may start there"
    assert decide(two, [601.0], [short], TRIED, NOW_S) == Decision(requests=1)
    assert decide(two, [600.0], [short, used], TRIED, NOW_S) == Decision()
    long_idle = an_allocation("ready", idle_s=400.0, left_s=600.0)
    assert decide(two, [601.0], [long_idle, used], TRIED, NOW_S) == Decision(give_back=("a",)), "once"


def test_the_smallest_number_is_held_without_jobs():
    assert requested(0, limits=limits(min_allocations=2)) == 2
    idle = [an_allocation("ready", name, idle_s=1000.0) for name in "abc"]
    assert decide(limits(min_allocations=2), [], idle, TRIED, NOW_S) == Decision(give_back=("a",))


def test_what_was_idle_longest_goes_first_and_what_is_needed_stays():
    allocations = [
        an_allocation("ready", "needed"),
        an_allocation("ready", "short", idle_s=299.0),
        an_allocation("ready", "long", idle_s=400.0),
        an_allocation("pending", "longer", idle_s=500.0),
        an_allocation("requested", "unknown", idle_s=500.0),
        an_allocation("released", "gone", idle_s=500.0),
    ]
    assert decide(LIMITS, [], allocations, TRIED, NOW_S).give_back == ("longer", "long")
    assert decide(limits(min_allocations=4), [], allocations, TRIED, NOW_S).give_back == ("longer",)


def test_an_allocation_whose_agent_never_answers_is_no_use():
    silent = an_allocation("starting", age_s=START_TIMEOUT_S)
    assert decide(LIMITS, [0.0], [silent], TRIED, NOW_S) == Decision(requests=1, silent=("a",))
    assert not decide(LIMITS, [0.0], [an_allocation("starting", age_s=START_TIMEOUT_S - 1)], TRIED, NOW_S).silent


phases = st.sampled_from(["requested", "pending", "starting", "ready", "released"])
ages = st.floats(0.0, 1000.0)


@st.composite
def situations(draw):
    found = [
        an_allocation(phase, str(number), idle_s=draw(st.none() | ages), age_s=draw(ages), left_s=draw(ages))
        for number, phase in enumerate(draw(st.lists(phases, max_size=10)))
    ]
    most = draw(st.integers(1, 10))
    bounds = limits(min_allocations=draw(st.integers(0, most)), max_allocations=most, backlog=draw(st.integers(1, 10)))
    record = Record(
        is_tried=draw(st.booleans()), failures=draw(st.integers(0, 4)), failed_at_s=NOW_S - draw(st.floats(0.0, 500.0))
    )
    return bounds, draw(st.lists(st.sampled_from([0.0, 100.0, 700.0]), max_size=20)), found, record


@given(situations())
def test_no_limit_is_ever_passed(situation):
    bounds, waiting, allocations, record = situation
    decision = decide(bounds, waiting, allocations, record, NOW_S)
    phase_of = {item.name: item.phase for item in allocations}
    under_way = sum(1 for item in allocations if item.phase in QUEUED and item.name not in decision.silent)
    if decision.requests:
        assert len(allocations) + decision.requests <= bounds.max_allocations
        assert under_way + decision.requests <= (bounds.backlog if record.is_tried and not record.failures else 1)
        held = sum(1 for item in allocations if item.phase != "released" and item.name not in decision.silent)
        assert under_way + decision.requests <= len(waiting) or held + decision.requests <= bounds.min_allocations
        assert not record.is_paused
    ended = (*decision.give_back, *decision.silent, *decision.too_short)
    assert len(set(ended)) == len(ended)
    assert all(phase_of[name] not in ("released", "requested") for name in ended)
    held = sum(1 for item in allocations if item.phase != "released" and item.name not in ended)
    if decision.give_back and not decision.too_short:
        assert held >= bounds.min_allocations
