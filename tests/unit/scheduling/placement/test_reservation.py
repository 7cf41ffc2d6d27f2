"""GPUs that are reserved for one job: when, which, and who may have them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_snapshot
from cotenant.core.job import Attempt, AttemptExit, OomEvidence, Queued
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement import scores
from cotenant.scheduling.placement.gpu_index import make_index
from cotenant.scheduling.placement.gpu_view import EXCLUSIVE, SHARED, GpuView
from cotenant.scheduling.placement.pending_queue import DemandClass, PendingJob
from cotenant.scheduling.placement.reservation import Reservation
from cotenant.scheduling.placement.rules import AdmissionRules, gpu_refusal

RULES = AdmissionRules(gates=(), pairing=None)


def an_entry(*, gpus: int = 1, gib: float = 8, since_s: float = 100.0, oom_gib: float = 0) -> PendingJob:
    """`oom_gib`: it was seen to hold so much of the 8 GiB promised to an attempt that ran out of memory."""
    place = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=8 * GiB)
    end = AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True))
    peaks = {"GPU-0": int(oom_gib * GiB)}
    attempt = Attempt(number=1, placement=place, placed_at_s=60.0, exit=end, peak_observed_bytes=peaks)
    attempts = (attempt,) if oom_gib else ()
    job = replace(a_job(1, gib, at_s=50.0, gpus=gpus), state=Queued(since_s=since_s), attempts=attempts)
    return PendingJob(job, (0.0,), DemandClass(Demand(gpus=gpus, bytes=int(gib * GiB))))


def views(*residents: int) -> list[GpuView]:
    """GPUs of 40 GiB, with so many residents of 1 GiB each, all open."""
    found = [
        GpuView(
            a_snapshot(place, residents=tuple(a_resident(1, job_id=100 * place + number) for number in range(count)))
        )
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
    ("reserve_after_s", "oom_gib", "gpus", "due_at_s"),
    [
        pytest.param(600.0, 0, 4, 700.0, id="has waited too long"),
        pytest.param(None, 0, 4, None, id="never"),
        pytest.param(600.0, 8, 4, -math.inf, id="ran out of memory"),
        pytest.param(600.0, 0.5, 4, 700.0, id="says that it ran out of memory"),
        pytest.param(600.0, 8, 1, 700.0, id="there would be none for others"),
    ],
)
def test_a_reservation_is_due_after_reserve_after_s_or_an_oom(reserve_after_s, oom_gib, gpus, due_at_s):
    assert Reservation(RULES, reserve_after_s).due_at_s(an_entry(oom_gib=oom_gib), gpus) == due_at_s


@pytest.mark.parametrize(
    ("oom_gib", "reason"),
    [
        pytest.param(0, "which has waited long", id="overdue"),
        pytest.param(8, "which ran out of memory and needs more", id="out of memory"),
        pytest.param(0.5, "which has waited long", id="forged"),
    ],
)
def test_a_reservation_says_why(oom_gib, reason):
    gpus = views(0)
    Reservation(RULES, 600.0).begin(an_entry(oom_gib=oom_gib), gpus, 0.0)
    refusal = gpu_refusal(gpus[0], 0.0, 2)
    assert refusal is not None
    assert refusal.reason == f"reserved for job 1, {reason}"


def test_no_second_reservation_while_one_is_active():
    reservation = Reservation(RULES, 600.0)
    reservation.begin(an_entry(), views(0), 0.0)
    assert reservation.job_id == 1
    assert reservation.due_at_s(an_entry(), 4) is None


def test_gpus_with_the_fewest_residents_are_reserved_and_released():
    reservation, gpus = Reservation(RULES, 600.0), views(2, 0, 1)
    assert [view.place for view in reservation.begin(an_entry(gpus=2), gpus, 0.0)] == [1, 2]
    assert [gpu.reserved_for for gpu in gpus] == [None, 1, 1]
    assert reservation.retry_pending
    assert [view.place for view in reservation.end()] == [1, 2]
    assert (reservation.job_id, [gpu.reserved_for for gpu in gpus]) == (None, [None, None, None])


@pytest.mark.parametrize(
    "entry",
    [pytest.param(an_entry(gpus=3), id="too few GPUs"), pytest.param(an_entry(gib=41), id="too small GPUs")],
)
def test_no_reservation_if_the_gpus_cannot_satisfy_the_job(entry):
    reservation, gpus = Reservation(RULES, 600.0), views(0, 0)
    assert reservation.begin(entry, gpus, 0.0) == ()
    assert (reservation.job_id, reservation.retry_pending, [gpu.reserved_for for gpu in gpus]) == (
        None,
        False,
        [None, None],
    )


def test_the_job_gets_reserved_gpus_first_and_then_others():
    reservation, gpus = Reservation(RULES, 600.0), views(1, 0, 0)
    entry = an_entry(gpus=2)
    reservation.begin(entry, gpus[1:], 0.0)
    gpus[1].take(a_resident(36, job_id=7))
    assert [view.place for view in reservation.best(entry, gpus, others(gpus), 0.0)] == [2, 0]


def test_a_reservation_places_nothing_until_enough_gpus_qualify():
    reservation, gpus = Reservation(RULES, 600.0), views(1, 0)
    entry = an_entry(gpus=2)
    reservation.begin(entry, gpus, 0.0)
    gpus[0].take(a_resident(36, job_id=7))
    assert reservation.best(entry, gpus, others(gpus), 0.0) == ()
