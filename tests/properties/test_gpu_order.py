"""Which GPUs a request gets depends on the GPUs and the score, and never on the number of GPUs in the server."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_job, a_resident, a_snapshot
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement import orders
from cotenant.scheduling.placement.gpu_index import LINEAR_SCAN_MAX_GPUS
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.node_packing import MAX_TIED
from cotenant.scheduling.placement.ranked import Ranked
from cotenant.scheduling.placement.rules import fits
from cotenant.scheduling.placement.scores import Score, constant, less_memory, more_memory
from cotenant.scheduling.placement.sorted_buckets import MAX_IN_BUCKET

THRESHOLDS = (LINEAR_SCAN_MAX_GPUS, MAX_IN_BUCKET, 2 * MAX_IN_BUCKET, MAX_TIED)
SIZES = sorted({size + around for size in THRESHOLDS for around in (-1, 0, 1)} | {2, 4, 300})

KEYS: dict[str, Callable[[GpuView], float]] = {
    "most memory": more_memory,
    "least memory": less_memory,
    "constant": constant,
    "last place": lambda view: -view.place,
    "place modulo 7": lambda view: view.place % 7,
    "far below 0": lambda view: -1e12 * (view.place % 5),
    "tiny": lambda view: 1e-15 * ((view.place * 31) % 11),
    "floats of both signs": lambda view: ((view.place * 37) % 13 - 6) / 3,
    "ints and floats": lambda view: view.place % 3 if view.place % 2 else (view.place % 5) / 2,
    "truth values": lambda view: view.place % 3 == 1,
    "not a number": lambda view: float("nan") if view.place % 4 == 0 else -view.place,
    "infinite": lambda view: float("-inf") if view.place % 9 == 5 else view.place % 2,
    "residents": lambda view: len(view.residents),
}


def a_gpu(place: int, rng: random.Random):
    residents = tuple(a_resident(rng.choice([2, 8, 30]), job_id=1000 + place) for _ in range(rng.choice([0, 0, 1])))
    return a_snapshot(place, gib=rng.choice([24, 40, 40]), foreign=rng.choice([0, 0, 3]), residents=residents)


def placed(policy, gpus, job, **options):
    placer = policy.placer(**options)
    for gpu in gpus:
        placer.update(gpu)
    placer.add(job)
    return [place.gpu_uuids for place in placer.decide(0.0)]


def by_definition(score, gpus, job, turn=0):
    """Sort all GPUs that fit by key and then by display order; take the first ones."""
    demand = Demand(job.spec.gpus, job.estimate.bound_bytes)
    views = [GpuView(gpu, place) for place, gpu in enumerate(gpus)]

    def rank(view):
        key = score.key(view)
        return (float("inf") if key != key else key, (view.place - turn) % len(views))

    ranked = sorted((view for view in views if fits(view, demand)), key=rank)
    chosen = ranked[: job.spec.gpus]
    return [tuple(view.uuid for view in chosen)] if len(chosen) == job.spec.gpus else []


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 2**32), size=st.sampled_from(SIZES), wanted=st.integers(1, 4), gib=st.sampled_from([1, 16, 32])
)
def test_gpus_are_taken_in_the_order_of_the_score_on_servers_of_any_size(key, seed, size, wanted, gib):
    rng = random.Random(seed)
    score = Score(key, KEYS[key])
    policy = Ranked(name="test", order=orders.fifo, score=score)
    gpus = [a_gpu(place, rng) for place in range(size)]
    job = a_job(1, gib, gpus=wanted)
    expected = by_definition(score, gpus, job)
    assert placed(policy, gpus, job) == expected
    for most in (0, 10**9):
        assert placed(policy, gpus, job, linear_scan_max_gpus=most) == expected


@pytest.mark.parametrize("key", [key for key in KEYS if "memory" not in key])
@pytest.mark.parametrize("size", [4, LINEAR_SCAN_MAX_GPUS, MAX_IN_BUCKET])
def test_idle_gpus_that_are_added_do_not_change_the_order_of_the_others(key, size):
    """One exclusive job after the other takes all GPUs: the order of preference."""
    policy = Ranked(name="test", order=orders.fifo, score=Score(key, KEYS[key]), exclusive=True)

    def preference(count):
        placer = policy.placer()
        for place in range(count):
            placer.update(a_snapshot(place))
        for job_id in range(1, count + 1):
            placer.add(a_job(job_id, 8, at_s=float(job_id)))
        return [int(place.gpu_uuids[0].removeprefix("GPU-")) for place in placer.decide(0.0)]

    small = preference(size)
    assert sorted(small) == list(range(size))
    for more in (1, LINEAR_SCAN_MAX_GPUS, MAX_IN_BUCKET):
        assert [place for place in preference(size + more) if place < size] == small


@pytest.mark.parametrize("size", [3, LINEAR_SCAN_MAX_GPUS, LINEAR_SCAN_MAX_GPUS + 1, MAX_IN_BUCKET + 1])
@pytest.mark.parametrize("key", ["constant", "place modulo 7", "floats of both signs", "most memory"])
def test_a_rotating_score_goes_round_among_ties_on_servers_of_any_size(key, size):
    score = Score(key, KEYS[key], rotates=True)
    policy = Ranked(name="test", order=orders.fifo, score=score)
    placers = [policy.placer(linear_scan_max_gpus=most) for most in (0, 10**9)]
    gpus = [a_snapshot(place, residents=(a_resident(1, job_id=10_000 + place),)) for place in range(size)]
    turn = 0
    for job_id in range(1, 12):
        job = a_job(job_id, 1, gpus=1 + job_id % 3)
        expected = by_definition(score, gpus, job, turn)
        for placer in placers:
            for gpu in gpus:  # as they were: without the jobs placed before
                placer.update(gpu)
            placer.add(job)
            assert [place.gpu_uuids for place in placer.decide(0.0)] == expected
        turn = (int(expected[0][-1].removeprefix("GPU-")) + 1) % size
