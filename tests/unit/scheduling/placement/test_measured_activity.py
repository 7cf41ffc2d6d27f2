"""A placer that is told what a GPU was seen to do: who waits is looked at again only where that may help."""

from __future__ import annotations

import pytest

from builders import a_job, a_snapshot
from cotenant.scheduling.policies import create
from cotenant.scheduling.prediction.interference import GpuActivity

BUSY, CALM = GpuActivity(None, 0.95, 0.5, 0.5), GpuActivity(None, 0.2, 0.1, 0.1)


def beside_one(name, options, second):
    """A placer of one GPU with job 1 at work, and `second` waiting."""
    placer = create(name, options).placer()
    placer.update(a_snapshot())
    placer.add(a_job(1, 4))
    assert [placement.job_id for placement in placer.decide(0.0)] == [1]
    placer.mark_active(1, 1.0)
    placer.set_activity("GPU-0", BUSY)
    placer.add(second)
    assert placer.decide(2.0) == []
    return placer


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("most-memory", {"warmup_s": 0.0}, id="a gate opens"),
        pytest.param(
            "marginal-gain",
            {"warmup_s": 0.0, "smact_sum": 1.1, "max_slowdown": 9.0, "min_gain": -1.0},
            id="a match sees another company",
        ),
    ],
)
def test_a_pending_job_is_placed_when_the_activity_of_the_gpu_drops(name, options):
    placer = beside_one(name, options, a_job(2, 20))
    placer.set_activity("GPU-0", BUSY)
    assert placer.decide(3.0) == []
    placer.set_activity("GPU-0", CALM)
    assert [placement.job_id for placement in placer.decide(4.0)] == [2]


def test_a_job_with_a_reservation_is_placed_when_the_activity_of_its_gpu_drops():
    placer = beside_one("most-memory", {"warmup_s": 0.0, "reserve_after_s": 10.0}, a_job(2, 20))
    assert placer.decide(20.0) == []  # it has waited long: the GPU is kept for it from now on
    placer.add(a_job(3, 1))
    placer.set_activity("GPU-0", CALM)
    assert [placement.job_id for placement in placer.decide(21.0)] == [2, 3]


@pytest.mark.parametrize("gpus", [2, 20], ids=["looped over", "kept in order"])
@pytest.mark.parametrize(("name", "smact"), [("least-utilized", 0.1), ("most-utilized", 0.7)])
def test_a_change_of_activity_reorders_gpus_that_stay_eligible(name, smact, gpus):
    placer = create(name, {"warmup_s": 0.0}).placer()
    for index in range(gpus):
        placer.update(a_snapshot(index))
    for number in range(1, gpus + 1):
        placer.add(a_job(number, 21))
    placed = {placement.gpu_uuids[0]: placement.job_id for placement in placer.decide(0.0)}
    assert len(placed) == gpus
    for uuid, job_id in placed.items():
        placer.mark_active(job_id, 1.0)
        placer.set_activity(uuid, GpuActivity(None, 0.4, 0.1, 0.1))
    placer.set_activity("GPU-1", GpuActivity(None, smact, 0.1, 0.1))  # no gate closes
    placer.add(a_job(1000, 4))
    assert [placement.gpu_uuids for placement in placer.decide(2.0)] == [("GPU-1",)]


def test_activity_seen_during_the_warm_up_replaces_its_earlier_timer():
    """Unseen it would have opened at 60 s; seen at 50 s it settles until 80 s, and opens then."""
    placer = create("most-memory", {"warmup_s": 30.0}).placer()
    placer.update(a_snapshot())
    placer.add(a_job(1, 4))
    placer.decide(0.0)
    placer.add(a_job(2, 4))
    assert placer.decide(0.0) == []
    assert placer.wakes_at_s == 60.0
    placer.mark_active(1, 50.0)
    placer.set_activity("GPU-0", CALM)
    assert placer.decide(60.0) == []
    assert placer.wakes_at_s == 80.0
    assert [placement.job_id for placement in placer.decide(80.0)] == [2]
