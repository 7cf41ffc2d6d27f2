from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, a_spec, an_estimate
from cotenant.core.units import GiB
from cotenant.scheduling.demand import demand_bytes, demand_of, never_fits


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
def test_demand_is_the_declared_or_estimated_memory_or_the_floor(declared, estimated, floor, need):
    spec = a_spec(declared_bytes=None if declared is None else declared * GiB)
    job = replace(a_job(gib=estimated), spec=spec, min_memory_bytes=floor * GiB)
    assert demand_bytes(job) == (None if need is None else need * GiB)


def test_a_floor_above_every_gpu_requests_an_exclusive_gpu():
    job = replace(a_job(gib=30), min_memory_bytes=60 * GiB)
    assert never_fits(job, [40 * GiB]) is None
    demand = demand_of(job, [40 * GiB])
    assert (demand.bytes, demand.exclusive, demand.min_gpu_bytes) == (None, True, 40 * GiB)


def test_a_partial_estimate_requests_an_exclusive_gpu():
    job = replace(a_job(), estimate=an_estimate(8, partial=True))
    assert demand_bytes(job) is None
    assert demand_of(job, [40 * GiB]).exclusive


def test_an_eager_estimate_of_compiled_code_excludes_no_gpu():
    job = replace(a_job(), estimate=an_estimate(200, eager=True))
    assert never_fits(job, [40 * GiB]) is None
    demand = demand_of(job, [40 * GiB])
    assert (demand.bytes, demand.exclusive, demand.min_gpu_bytes) == (None, True, 40 * GiB)
    small = demand_of(replace(job, estimate=an_estimate(8, eager=True)), [40 * GiB])
    assert (small.bytes, small.exclusive) == (8 * GiB, False)


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
def test_never_fits_gives_the_reason_for_a_job_that_no_gpu_can_hold(gpus, gib, totals, why):
    assert never_fits(a_job(gib=gib, gpus=gpus), [total * GiB for total in totals]) == why


def test_a_job_that_fits_without_its_margin_may_run_alone():
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
def test_demand_has_memory_exclusivity_and_the_smallest_gpu(gib, changes, spec, need):
    found = demand_of(replace(a_job(gib=gib, **spec), **changes), [80 * GiB, 40 * GiB])
    size = None if found.bytes is None else found.bytes / GiB
    assert (size, found.exclusive, found.min_gpu_bytes / GiB) == need
    assert bool(found.exclusive_reason) == found.exclusive
    if gib == 79.5:
        assert found.exclusive_reason == "needs 79.5 GiB, the largest GPU has 80.0 GiB"
