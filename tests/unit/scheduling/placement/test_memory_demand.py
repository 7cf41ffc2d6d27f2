from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_server, a_snapshot, a_spec, an_estimate
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling.placement.memory_demand import PlacementChecker, demand_bytes, demand_of, never_fits


@pytest.mark.parametrize(
    ("declared", "estimated", "floor", "need"),  # GiB
    [
        pytest.param(None, None, 0, None, id="nothing known"),
        pytest.param(None, None, 9, None, id="a floor alone is no upper bound"),
        pytest.param(None, 8, 0, 8, id="estimated"),
        pytest.param(6, 8, 0, 6, id="declared wins"),
        pytest.param(6, None, 9, 9, id="declared, but ran out of memory"),
        pytest.param(None, 8, 9, 9, id="estimated, but ran out of memory"),
    ],
)
def test_need_bytes(declared, estimated, floor, need):
    spec = a_spec(declared_bytes=None if declared is None else declared * GiB)
    job = replace(a_job(gib=estimated), spec=spec, min_memory_bytes=floor * GiB)
    assert demand_bytes(job) == (None if need is None else need * GiB)


def test_a_floor_above_every_gpu_means_alone_not_never():
    job = replace(a_job(gib=30), min_memory_bytes=60 * GiB)
    assert never_fits(job, [40 * GiB]) is None
    need = demand_of(job, [40 * GiB])
    assert (need.bytes, need.alone, need.min_gpu_bytes) == (None, True, 40 * GiB)


def test_a_partial_estimate_is_no_bound():
    job = replace(a_job(), estimate=an_estimate(8, partial=True))
    assert demand_bytes(job) is None
    assert demand_of(job, [40 * GiB]).alone


@pytest.mark.parametrize(
    ("gpus", "gib", "totals", "why"),
    [
        pytest.param(1, 8, [40], None, id="fits"),
        pytest.param(1, 48, [40], None, id="20 % above: may try"),
        pytest.param(1, 48.1, [40], "needs 48.1 GiB on each GPU, the largest has 40.0 GiB", id="beyond"),
        pytest.param(2, 30, [80, 24], "needs 30.0 GiB on each GPU, the largest has 24.0 GiB", id="the second counts"),
        pytest.param(3, 1, [40, 40], "needs 3 GPUs, the server has 2", id="too many"),
        pytest.param(1, None, [40], None, id="unknown"),
    ],
)
def test_never_fits(gpus, gib, totals, why):
    assert never_fits(a_job(gib=gib, gpus=gpus), [each * GiB for each in totals]) == why


def test_the_margin_does_not_keep_a_job_from_trying():
    job = replace(a_job(), estimate=an_estimate(47, margin_bytes=3 * GiB))
    assert never_fits(job, [40 * GiB]) is None


@pytest.mark.parametrize(
    ("gib", "changes", "spec", "need"),  # need as (GiB, alone, least total)
    [
        pytest.param(8, {}, {}, (8, False, 0), id="ordinary"),
        pytest.param(8, {}, {"exclusive": True}, (8, True, 0), id="exclusive"),
        pytest.param(8, {"exclusive_retry": True}, {}, (8, True, 80), id="retry alone, on the largest"),
        pytest.param(None, {}, {}, (None, True, 0), id="unknown"),
        pytest.param(None, {"exclusive_retry": True}, {}, (None, True, 80), id="unknown, retry"),
        pytest.param(79, {}, {}, (79, False, 0), id="leaves what counts as idle"),
        pytest.param(79.5, {}, {}, (None, True, 80), id="nearly the whole GPU"),
        pytest.param(90, {}, {}, (None, True, 80), id="more than there is"),
        pytest.param(100, {}, {}, (100, False, 0), id="far more: simply does not fit"),
    ],
)
def test_need_of(gib, changes, spec, need):
    found = demand_of(replace(a_job(gib=gib, **spec), **changes), [80 * GiB, 40 * GiB])
    size = None if found.bytes is None else found.bytes / GiB
    assert (size, found.alone, found.min_gpu_bytes / GiB) == need
    assert bool(found.exclusive_reason) == found.alone


@pytest.mark.parametrize(
    ("uuids", "gib", "sharing", "broken"),
    [
        pytest.param(("GPU-0",), 8, "time-sliced", None, id="fine"),
        pytest.param(("GPU-0",), 40.1, "time-sliced", "40.1 GiB promised on GPU-0, 40.0 GiB available", id="too much"),
        pytest.param(("GPU-0",), 0, "time-sliced", "0 B promised on GPU-0, 40.0 GiB available", id="nothing promised"),
        pytest.param(("GPU-9",), 8, "time-sliced", "nothing may be promised on GPU-9", id="no such GPU"),
        pytest.param(("GPU-3",), 8, "time-sliced", "nothing may be promised on GPU-3", id="not readable"),
        pytest.param(("GPU-1",), 8, "exclusive", "GPU-1 cannot be shared with job 1", id="alone beside another"),
        pytest.param(("GPU-2",), 8, "time-sliced", "GPU-2 cannot be shared with job 1", id="beside one alone"),
        pytest.param(("GPU-0", "GPU-0"), 8, "time-sliced", "1 different GPUs wanted, 1 given", id="twice the same"),
    ],
)
def test_the_ledger_refuses_what_a_faulty_policy_answers(uuids, gib, sharing, broken):
    server = a_server(
        a_snapshot(0),
        a_snapshot(1, residents=(a_resident(8),)),
        a_snapshot(2, residents=(a_resident(8, sharing="exclusive"),)),
        a_snapshot(3, strangers=None),
    )
    placement = Placement(job_id=1, gpu_uuids=uuids, sharing=sharing, promised_bytes=int(gib * GiB))
    assert PlacementChecker(server).admit(placement, 1) == broken


def test_the_ledger_counts_what_it_admitted():
    ledger = PlacementChecker(a_server(a_snapshot(0)))
    placement = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=25 * GiB)
    assert ledger.admit(placement, 1) is None
    assert ledger.admit(placement, 1) == "25.0 GiB promised on GPU-0, 15.0 GiB available"
    alone = replace(placement, sharing="exclusive", promised_bytes=GiB)
    assert ledger.admit(alone, 1) == "GPU-0 cannot be shared with job 1"


def test_the_ledger_closes_a_gpu_given_exclusively():
    ledger = PlacementChecker(a_server(a_snapshot(0)))
    alone = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="exclusive", promised_bytes=GiB)
    assert ledger.admit(alone, 1) is None
    assert ledger.admit(replace(alone, job_id=2, sharing="time-sliced"), 1) == "GPU-0 cannot be shared with job 2"
