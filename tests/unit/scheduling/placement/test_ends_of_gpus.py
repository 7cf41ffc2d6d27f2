"""GPUs that are available for a time: where a job with a time limit may start, and what time alone changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_snapshot
from cotenant.core.units import GiB
from cotenant.scheduling.placement import orders, scores
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.scheduling.policies import create, policies

MEMORY_ONLY = Ranked(name="test", order=orders.fifo, score=scores.first)
BUSY = (a_resident(30),)


def ending(snapshot, until_s, server="n1"):
    return replace(snapshot, gpu=replace(snapshot.gpu, available_until_s=until_s, server=server))


def placed(placements):
    return {placement.job_id: placement.gpu_uuids for placement in placements}


def a_placer(*ends_s, policy=MEMORY_ONLY, **options):
    placer = policy.placer(**options)
    for index, until_s in enumerate(ends_s):
        placer.update(ending(a_snapshot(index), until_s, server=f"n{index}"))
    return placer


@pytest.mark.parametrize("name", policies())
@pytest.mark.parametrize("most", [0, 10**9], ids=["by index", "by linear scan"])
def test_every_policy_takes_a_gpu_with_time_enough(name, most):
    """Also for an exclusive job; and one without a limit starts anywhere."""
    policy = create(name)
    for job, allowed in (
        (a_job(1, 8, time_limit_s=600.0), {"GPU-1", "GPU-2"}),
        (a_job(1, 8, time_limit_s=600.0, exclusive=True), {"GPU-1", "GPU-2"}),
        (a_job(1, 8, time_limit_s=601.0), {"GPU-2"}),
        (a_job(1, 8), {"GPU-0", "GPU-1", "GPU-2"}),
    ):
        placer = a_placer(610.0, 700.0, None, policy=policy, linear_scan_max_gpus=most)
        placer.add(job)
        ((uuid,),) = placed(placer.decide(100.0)).values()
        assert uuid in allowed


def test_what_time_closes_is_not_remembered_as_open():
    placer = a_placer(1000.0)
    for job_id, at_s, fits in ((1, 400.0, True), (2, 400.1, False)):
        placer.add(a_job(job_id, 1, time_limit_s=600.0))
        assert bool(placer.decide(at_s)) == fits
    placer.add(a_job(3, 1))
    assert placed(placer.decide(999.0)) == {3: ("GPU-0",)}
    refused = placer.explain(2, 460.0)
    assert refused.rule == "insufficient_time"
    assert refused.reason == "GPU 0: its time limit of 10m00s is longer than the 9m00s that n0 has left"


def test_a_new_end_of_a_gpu_counts():
    placer = a_placer(500.0)
    placer.add(a_job(1, 1, time_limit_s=600.0))
    assert placer.decide(0.0) == []
    placer.update(ending(a_snapshot(0), 600.0))
    assert placed(placer.decide(0.0)) == {1: ("GPU-0",)}


def test_a_job_that_no_gpu_has_time_for_does_not_stop_those_behind_it():
    placer = a_placer(500.0, policy=replace(MEMORY_ONLY, backfill=False))
    placer.add(a_job(1, 1, time_limit_s=600.0))
    placer.add(a_job(2, 1, time_limit_s=100.0, at_s=1.0))
    assert placed(placer.decide(0.0)) == {2: ("GPU-0",)}
    assert placer.explain(1, 0.0).rule == "insufficient_time"


def test_one_behind_it_is_explained_by_what_it_waits_for_itself():
    placer = replace(MEMORY_ONLY, backfill=False).placer()
    placer.update(ending(a_snapshot(0, residents=BUSY), 500.0))
    placer.add(a_job(1, 1, time_limit_s=600.0))
    placer.add(a_job(2, 20, at_s=1.0))
    assert placer.decide(0.0) == []
    assert [placer.explain(job_id, 0.0).rule for job_id in (1, 2)] == ["insufficient_time", "insufficient_memory"]


def test_one_that_waits_for_memory_does_stop_them():
    placer = replace(MEMORY_ONLY, backfill=False).placer()
    placer.update(ending(a_snapshot(0, residents=BUSY), 700.0))
    placer.add(a_job(1, 20, time_limit_s=600.0))
    placer.add(a_job(2, 1, time_limit_s=100.0, at_s=1.0))
    assert placer.decide(50.0) == []
    assert placer.explain(2, 50.0).rule == "head_of_line"
    assert placed(placer.decide(101.0)) == {2: ("GPU-0",)}, "the first could not start there any more"


def test_no_gpu_is_reserved_that_ends_too_early_and_none_longer_than_it_has_time():
    placer = replace(MEMORY_ONLY, reserve_after_s=60.0).placer()
    placer.update(ending(a_snapshot(0, residents=BUSY), 900.0))
    placer.update(ending(a_snapshot(1, residents=(*BUSY, a_resident(1, job_id=101))), 2000.0))
    placer.add(a_job(1, 36, time_limit_s=1000.0))
    assert placer.decide(100.0) == []
    assert placer.wakes_at_s == 1000.0, "the other GPU is reserved, with fewer residents or not, until then"
    placer.add(a_job(2, 10, at_s=100.0))
    assert placed(placer.decide(101.0)) == {2: ("GPU-0",)}
    placer.add(a_job(3, 5, at_s=101.0))
    assert placer.decide(999.0) == []
    assert placed(placer.decide(1000.0)) == {3: ("GPU-1",)}, "the first could not start there any more"


def test_a_reserved_gpu_is_taken_in_time():
    placer = replace(MEMORY_ONLY, reserve_after_s=60.0).placer()
    placer.update(ending(a_snapshot(0, residents=BUSY), 2000.0))
    placer.add(a_job(1, 36, time_limit_s=1000.0))
    assert placer.decide(100.0) == []
    placer.update(ending(a_snapshot(0), 2000.0))
    assert placed(placer.decide(999.0)) == {1: ("GPU-0",)}


def test_the_same_promise_whatever_the_limit():
    placer = a_placer(None, 5000.0)
    placer.add(a_job(1, 8, time_limit_s=600.0))
    (placement,) = placer.decide(0.0)
    assert (placement.promised_bytes, placement.sharing) == (8 * GiB, "time-sliced")
