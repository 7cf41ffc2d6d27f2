"""Who is on a GPU, as policies that compare jobs see it."""

from __future__ import annotations

import pytest

from builders import a_job, a_resident, a_snapshot
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.pairing import co_runner_of, residents_of
from placers import Facts


def company(*residents, smact):
    return residents_of(GpuView(a_snapshot(residents=residents, at_s=100.0, smact=smact)))


def test_saturated_sms_leave_the_expectation_from_memory_unchanged():
    """SMs that are all in use say little of who uses them: then the expectation from memory stands."""
    residents = [a_resident(12, job_id=100 + number, placed_at_s=0.0, first_active_at_s=0.0) for number in range(2)]
    (one, other) = company(*residents, smact=1.0)
    assert one.smact == other.smact >= 0.70
    (one, other) = company(*residents, smact=0.4)
    assert one.smact == other.smact < 0.35


def test_a_resident_that_is_not_yet_active_counts_with_the_activity_expected_from_its_memory():
    seen, starting = a_resident(1, placed_at_s=0.0, first_active_at_s=0.0), a_resident(12, job_id=101, placed_at_s=0.0)
    found = company(seen, starting, smact=0.9)
    assert [item.smact for item in found] == pytest.approx([0.22, 0.70])


def test_a_lone_resident_is_attributed_the_whole_activity():
    (one,) = company(a_resident(12, placed_at_s=0.0, first_active_at_s=0.0), smact=0.34)
    assert (one.smact, one.guessed) == (pytest.approx(0.34), True)


def test_memory_of_residents_is_rounded_to_steps_below_a_tenth():
    sizes = {company(a_resident(gib), smact=0.5)[0].memory_bytes for gib in (7.8, 8.0, 8.2)}
    assert sizes == {8 * 2**30}


def test_residents_have_the_memory_size_of_their_gpu():
    snapshot = a_snapshot(residents=(a_resident(8),), at_s=100.0, smact=0.5)
    assert residents_of(GpuView(snapshot))[0].activity.gpu_memory_bytes == snapshot.gpu.memory_total_bytes


def test_attribution_uses_the_interference_expected_on_that_gpu():
    """On a small one the same jobs cost each other more, so the same reading says that they do more alone."""
    found = {}
    for gib in (10, 80):
        residents = tuple(
            a_resident(4, job_id=100 + number, placed_at_s=0.0, first_active_at_s=0.0) for number in range(2)
        )
        snapshot = a_snapshot(gib=gib, residents=residents, at_s=100.0, smact=0.85)
        found[gib] = residents_of(GpuView(snapshot))[0].smact
    assert found[10] > found[80]


def test_residents_that_differ_only_in_their_slowdown_bound_sort_stably():
    bounds = (None, 1.5)
    residents = [
        a_resident(8, job_id=100 + place, workload="w", smact=0.3, max_slowdown=bound)
        for place, bound in enumerate(bounds)
    ]
    assert company(*residents, smact=0.5) == company(*reversed(residents), smact=0.5)


def test_what_a_lone_resident_shows_has_no_interval():
    (one,) = company(a_resident(12, placed_at_s=0.0, first_active_at_s=0.0), smact=0.34)
    assert one.smact_high is None
    (starting,) = company(a_resident(12, placed_at_s=0.0), smact=0.34)
    assert starting.smact_high > starting.smact


def test_a_job_has_the_memory_that_its_history_says():
    facts = Facts()
    assert co_runner_of(a_job(1, 8), facts).memory_bytes == 8 * 2**30
    facts.demand_bytes = lambda _job: 2**30
    assert co_runner_of(a_job(1, 8), facts).memory_bytes == 2**30
