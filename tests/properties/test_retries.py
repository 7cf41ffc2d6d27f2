"""A job that ran out of memory restarts at the next decision that finds room, and delays no other job."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_job, a_resident, a_snapshot
from cotenant.core.job import Attempt, AttemptExit, OomEvidence, Queued
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling.placement.incremental import IncrementalPlacer
from cotenant.scheduling.placement.policy import NO_PREDICTIONS
from cotenant.scheduling.policies import create, policies

SHARE = [
    name
    for name in policies()
    if not create(name).exclusive
    and create(name).after_oom is None
    and name not in ("gandiva", "horus", "lucid", "sjf-bsbf", "tensorshare")
]
"""Policies of ours that share: those of the literature have rules of their own for whom a job may join."""

AT_S = 1000.0
OOM = AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True))


def a_retry(job_id: int, gib: float, *, end: AttemptExit = OOM, seen_gib: float = 1):
    """One that needs so much after its first attempt, of 1 GiB, ended so and was seen to hold so much."""
    place = Placement(job_id=job_id, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=GiB)
    attempt = Attempt(
        number=1, placement=place, placed_at_s=0.0, exit=end, peak_observed_bytes={"GPU-0": int(seen_gib * GiB)}
    )
    job = a_job(job_id, 1, at_s=float(job_id))
    return replace(job, attempts=(attempt,), min_memory_bytes=int(gib * GiB), state=Queued(since_s=AT_S))


def busy(place: int, promised_gib):
    """A GPU of 40 GiB whose SMs are all active; the newest resident was seen just now."""
    residents = tuple(
        a_resident(gib, gib, job_id=100 + 10 * place + i, placed_at_s=AT_S - 1, first_active_at_s=AT_S)
        for i, gib in enumerate(promised_gib)
    )
    return a_snapshot(place, residents=residents, at_s=AT_S, smact=1.0, smocc=1.0, drama=1.0)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(SHARE), st.sampled_from([1, 3, 20]), st.sampled_from([0, 10**9]))
def test_a_retry_starts_at_once_where_there_is_room_and_as_soon_as_there_is(seed, name, gpus, linear_scan_max_gpus):
    rng = random.Random(seed)
    placer = IncrementalPlacer(create(name), NO_PREDICTIONS, linear_scan_max_gpus=linear_scan_max_gpus)
    promises = [[rng.choice([4, 12, 19]) for _ in range(rng.choice([1, 2]))] for _ in range(gpus)]
    for place, gib in enumerate(promises):
        placer.update(busy(place, gib))
    placer.add(a_job(1, 2, at_s=1.0))
    assert placer.decide(AT_S) == [], "the rules on activity hold everybody else"
    need_gib = rng.choice([2, 10, 24, 30])
    placer.add(a_retry(2, need_gib))
    rooms = {place for place, gib in enumerate(promises) if 40 - sum(gib) >= need_gib}
    placed = {placement.job_id: int(placement.gpu_uuids[0].removeprefix("GPU-")) for placement in placer.decide(AT_S)}
    if rooms:
        assert placed.keys() == {2}
        assert placed[2] in rooms
        return
    assert placed == {}
    place = rng.randrange(gpus)
    placer.update(busy(place, [4]))
    assert [placement.job_id for placement in placer.decide(AT_S)] == [2]


@pytest.mark.parametrize("name", SHARE)
@pytest.mark.parametrize(
    "end",
    [
        pytest.param(AttemptExit(exit_code=1, signal=None, reason="exited"), id="failed by itself"),
        pytest.param(AttemptExit(exit_code=None, signal=None, reason="lost"), id="was lost"),
    ],
)
def test_other_retries_follow_the_gates(name, end):
    placer = create(name).placer()
    placer.update(busy(0, [4]))
    placer.add(a_retry(1, 2, end=end))
    assert placer.decide(AT_S) == []


@pytest.mark.parametrize("name", SHARE)
def test_an_oom_retry_without_memory_delays_no_other_job(name):
    placer = create(name, {"backfill": False} if name != "marginal-gain" else {}).placer()
    for place in range(2):
        placer.update(busy(place, [19, 19]))
    placer.update(a_snapshot(2, gib=16, at_s=AT_S, smact=0.0))
    placer.add(a_retry(1, 30))
    placer.add(a_job(2, 8, at_s=2.0))
    assert [(placement.job_id, placement.gpu_uuids) for placement in placer.decide(AT_S)] == [(2, ("GPU-2",))]


@pytest.mark.parametrize("name", ["best-fit", "most-memory"])
def test_an_oom_retry_passes_a_blocked_head_of_line(name):
    placer = create(name, {"backfill": False}).placer()
    placer.update(busy(0, [19]))
    placer.add(a_job(1, 30, at_s=1.0))
    placer.add(a_retry(2, 4))
    placer.add(a_job(3, 4, at_s=3.0))
    assert [placement.job_id for placement in placer.decide(AT_S)] == [2]
    assert placer.explain(3, AT_S).reason == "job 1 is ahead, and this policy starts jobs in order"
    placer.add(a_retry(4, 30))
    assert placer.decide(AT_S) == []
    assert placer.explain(4, AT_S).reason == "GPU 0: needs 30.0 GiB, 17.0 GiB available"


def test_only_the_job_that_ran_out_of_memory_bypasses_the_gates():
    """Beside one that asks for the very same and failed by itself."""
    placer = create("most-memory").placer()
    placer.update(busy(0, [4]))
    placer.add(a_retry(1, 2, end=AttemptExit(exit_code=1, signal=None, reason="exited")))
    placer.add(a_retry(2, 2))
    assert [placement.job_id for placement in placer.decide(AT_S)] == [2]


@pytest.mark.parametrize("name", SHARE)
def test_a_forged_oom_message_bypasses_no_gate(name):
    """The process printed the message and was seen to hold next to nothing."""
    placer = create(name).placer()
    placer.update(busy(0, [4]))
    placer.add(a_retry(1, 2, seen_gib=0.01))
    assert placer.decide(AT_S) == []


def test_aegis_applies_its_own_rule_to_retries():
    placer = create("aegis").placer()
    placer.update(busy(0, [4]))
    placer.add(a_retry(1, 2))
    assert placer.decide(AT_S) == []
    assert [rejection.rule for rejection in placer.explain(1, AT_S).rejections] == ["warming_up"]


def test_a_waiting_oom_retry_is_explained_by_memory_only():
    placer = create("most-memory").placer()
    placer.update(busy(0, [19, 19]))
    placer.add(a_retry(1, 4))
    placer.add(a_job(2, 1, at_s=2.0))
    assert placer.decide(AT_S) == []
    assert [rejection.reason for rejection in placer.explain(1, AT_S).rejections] == [
        "needs 4.0 GiB, 2.0 GiB available"
    ]
    assert [rejection.rule for rejection in placer.explain(2, AT_S).rejections] == ["warming_up"]


def test_max_jobs_and_requested_max_slowdown_hold_an_oom_retry_too():
    crowded = create("most-memory", {"max_jobs": 2}).placer()
    crowded.update(busy(0, [4, 4]))
    crowded.add(a_retry(1, 4))
    assert crowded.decide(AT_S) == []
    assert [rejection.rule for rejection in crowded.explain(1, AT_S).rejections] == ["max_jobs"]

    bounded = create("marginal-gain").placer()
    resident = a_resident(8, 8, job_id=100, placed_at_s=AT_S - 1, first_active_at_s=AT_S, max_slowdown=1.05, smact=1.0)
    bounded.update(a_snapshot(0, residents=(resident,), at_s=AT_S, smact=1.0))
    bounded.add(a_retry(1, 8))
    assert bounded.decide(AT_S) == []
    assert [rejection.rule for rejection in bounded.explain(1, AT_S).rejections] == ["max_slowdown"]
    bounded.update(a_snapshot(0, residents=(replace(resident, max_slowdown=None),), at_s=AT_S, smact=1.0))
    assert [placement.job_id for placement in bounded.decide(AT_S)] == [1]
