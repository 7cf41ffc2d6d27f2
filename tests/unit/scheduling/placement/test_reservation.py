"""GPUs that are reserved for one job: when, which, and who may have them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_snapshot
from cotenant.core.job import Queued
from cotenant.core.units import GiB
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement import scores
from cotenant.scheduling.placement.gpu_index import make_index
from cotenant.scheduling.placement.gpu_view import EXCLUSIVE, SHARED, GpuView
from cotenant.scheduling.placement.pending_queue import DemandClass, PendingJob
from cotenant.scheduling.placement.reservation import Reservation
from cotenant.scheduling.placement.rules import AdmissionRules

RULES = AdmissionRules(gates=(), pairing=None)


def an_entry(*, gpus: int = 1, gib: float = 8, since_s: float = 100.0, **learned) -> PendingJob:
    job = replace(a_job(1, gib, at_s=50.0, gpus=gpus), state=Queued(since_s=since_s), **learned)
    return PendingJob(job, (0.0,), DemandClass(Demand(gpus=gpus, bytes=int(gib * GiB))))


def views(*residents: int) -> list[GpuView]:
    """GPUs of 40 GiB, with so many residents of 1 GiB each, all open."""
    found = [
        GpuView(a_snapshot(place, residents=tuple(a_resident(1, job_id=100 * place + each) for each in range(count))))
        for place, count in enumerate(residents, start=0)
    ]
    for place, view in enumerate(found):
        view.place = place
        view.eligible_modes = SHARED | (0 if view.residents else EXCLUSIVE)
    return found


def others(among: list[GpuView]):
    """Those of `among` that are not reserved, in order."""
    order = make_index(among, scores.first, None)
    for view in among:
        order.update(view, view.reserved_for is None)
    return order


@pytest.mark.parametrize(
    ("reserve_after_s", "learned", "gpus", "due_at_s"),
    [
        pytest.param(600.0, {}, 4, 700.0, id="has waited too long"),
        pytest.param(None, {}, 4, None, id="never"),
        pytest.param(600.0, {"min_memory_bytes": 1}, 4, -math.inf, id="ran out of memory"),
        pytest.param(600.0, {"exclusive_retry": True}, 4, -math.inf, id="is to be alone after that"),
        pytest.param(600.0, {"min_memory_bytes": 1}, 1, 700.0, id="there would be none for others"),
    ],
)
def test_a_reservation_is_due_after_reserve_after_s_or_an_oom(reserve_after_s, learned, gpus, due_at_s):
    assert Reservation(RULES, reserve_after_s).due_at_s(an_entry(**learned), gpus) == due_at_s


def test_no_second_reservation_while_one_is_active():
    reservation = Reservation(RULES, 600.0)
    reservation.begin(an_entry(), views(0))
    assert reservation.job_id == 1
    assert reservation.due_at_s(an_entry(), 4) is None


def test_gpus_with_the_fewest_residents_are_reserved_and_released():
    reservation, gpus = Reservation(RULES, 600.0), views(2, 0, 1)
    assert [each.place for each in reservation.begin(an_entry(gpus=2), gpus)] == [1, 2]
    assert [each.reserved_for for each in gpus] == [None, 1, 1]
    assert reservation.retry_pending
    assert [each.place for each in reservation.end()] == [1, 2]
    assert (reservation.job_id, [each.reserved_for for each in gpus]) == (None, [None, None, None])


@pytest.mark.parametrize(
    "entry",
    [pytest.param(an_entry(gpus=3), id="too few GPUs"), pytest.param(an_entry(gib=41), id="too small GPUs")],
)
def test_no_reservation_if_the_gpus_cannot_satisfy_the_job(entry):
    reservation, gpus = Reservation(RULES, 600.0), views(0, 0)
    assert reservation.begin(entry, gpus) == ()
    assert (reservation.job_id, reservation.retry_pending, [each.reserved_for for each in gpus]) == (
        None,
        False,
        [None, None],
    )


def test_the_job_gets_reserved_gpus_first_and_then_others():
    reservation, gpus = Reservation(RULES, 600.0), views(1, 0, 0)
    entry = an_entry(gpus=2)
    reservation.begin(entry, gpus[1:])
    gpus[1].take(a_resident(36, job_id=7))
    assert [each.place for each in reservation.best(entry, gpus, others(gpus), 0.0)] == [2, 0]


def test_a_reservation_places_nothing_until_enough_gpus_qualify():
    reservation, gpus = Reservation(RULES, 600.0), views(1, 0)
    entry = an_entry(gpus=2)
    reservation.begin(entry, gpus)
    gpus[0].take(a_resident(36, job_id=7))
    assert reservation.best(entry, gpus, others(gpus), 0.0) == ()
