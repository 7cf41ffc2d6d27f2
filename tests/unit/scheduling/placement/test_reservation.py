"""GPUs that are kept for one job: when, which, and who may have them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_snapshot
from cotenant.core.job import Queued
from cotenant.core.units import GiB
from cotenant.scheduling.placement import orders, scores
from cotenant.scheduling.placement.gpu_index import make_index
from cotenant.scheduling.placement.gpu_view import EMPTY, SHARED, GpuView
from cotenant.scheduling.placement.memory_demand import MemoryDemand
from cotenant.scheduling.placement.pending_queue import DemandClass, PendingJob
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.scheduling.placement.reservation import Reservation

POLICY = Ranked(name="test", order=orders.fifo, score=scores.first, reserve_after_s=600.0)


def an_entry(*, gpus: int = 1, gib: float = 8, since_s: float = 100.0, **learned) -> PendingJob:
    job = replace(a_job(1, gib, at_s=50.0, gpus=gpus), state=Queued(since_s=since_s), **learned)
    return PendingJob(job, (0.0,), DemandClass(MemoryDemand(gpus=gpus, bytes=int(gib * GiB)), None))


def views(*residents: int) -> list[GpuView]:
    """GPUs of 40 GiB, with so many residents of 1 GiB each, all open."""
    found = [
        GpuView(a_snapshot(place, residents=tuple(a_resident(1, job_id=100 * place + each) for each in range(count))))
        for place, count in enumerate(residents, start=0)
    ]
    for place, view in enumerate(found):
        view.place = place
        view.eligible_modes = SHARED | (0 if view.residents else EMPTY)
    return found


def others(among: list[GpuView]):
    """Those of `among` that are kept for nobody, in order."""
    order = make_index(among, POLICY.score, None)
    for view in among:
        order.file(view, view.reserved_for is None)
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
def test_when_gpus_may_be_kept(reserve_after_s, learned, gpus, due_at_s):
    assert Reservation(replace(POLICY, reserve_after_s=reserve_after_s)).due_at_s(an_entry(**learned), gpus) == due_at_s


def test_they_are_kept_for_one_job_at_a_time():
    kept = Reservation(POLICY)
    kept.begin(an_entry(), views(0))
    assert kept.job_id == 1
    assert kept.due_at_s(an_entry(), 4) is None


def test_those_with_the_fewest_residents_are_kept_and_given_back():
    kept, gpus = Reservation(POLICY), views(2, 0, 1)
    assert [each.place for each in kept.begin(an_entry(gpus=2), gpus)] == [1, 2]
    assert [each.reserved_for for each in gpus] == [None, 1, 1]
    assert kept.retry_pending
    assert [each.place for each in kept.end()] == [1, 2]
    assert (kept.job_id, [each.reserved_for for each in gpus]) == (None, [None, None, None])


@pytest.mark.parametrize(
    "entry",
    [pytest.param(an_entry(gpus=3), id="too few GPUs"), pytest.param(an_entry(gib=41), id="too small GPUs")],
)
def test_none_are_kept_that_would_not_do(entry):
    kept, gpus = Reservation(POLICY), views(0, 0)
    assert kept.begin(entry, gpus) == ()
    assert (kept.job_id, kept.retry_pending, [each.reserved_for for each in gpus]) == (None, False, [None, None])


def test_the_job_gets_its_own_first_and_then_others():
    kept, gpus = Reservation(POLICY), views(1, 0, 0)
    entry = an_entry(gpus=2)
    kept.begin(entry, gpus[1:])
    gpus[1].take(a_resident(36, job_id=7))
    assert [each.place for each in kept.best(entry.kind, gpus, others(gpus), 0.0)] == [2, 0]


def test_the_job_gets_nothing_while_too_few_will_do():
    kept, gpus = Reservation(POLICY), views(1, 0)
    entry = an_entry(gpus=2)
    kept.begin(entry, gpus)
    gpus[0].take(a_resident(36, job_id=7))
    assert kept.best(entry.kind, gpus, others(gpus), 0.0) == ()
