"""What every registered policy honors, on servers and queues that nobody thought of."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_job, a_resident, a_server, a_snapshot
from cotenant.core.gpu import GpuSnapshot, Resident, ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.placement.policy import Policy
from cotenant.scheduling.policies import create, policies

NOW_S = 1000.0
FEW = settings(max_examples=25, deadline=None)
GIB = st.sampled_from([0.5, 4, 8, 12, 20, 39, 40, 41, 60])


@st.composite
def residents(draw: st.DrawFn, place: int) -> tuple[Resident, ...]:
    count = draw(st.integers(0, 3))
    sharing = "exclusive" if count == 1 and draw(st.booleans()) else "time-sliced"
    return tuple(
        a_resident(
            draw(st.sampled_from([2, 8, 16])),
            draw(st.sampled_from([None, 1, 9, 30])),
            job_id=1000 + 10 * place + each,
            sharing=sharing,
            placed_at_s=draw(st.sampled_from([0.0, NOW_S - 5])),
            first_active_at_s=draw(st.sampled_from([None, 10.0, NOW_S - 1])),
        )
        for each in range(count)
    )


@st.composite
def gpus(draw: st.DrawFn, place: int) -> GpuSnapshot:
    found = a_snapshot(
        place,
        gib=draw(st.sampled_from([24, 40, 80])),
        strangers=draw(st.sampled_from([None, 0, 0, 0.5, 3, 30])),
        residents=draw(residents(place)),
        at_s=NOW_S,
        smact=draw(st.sampled_from([None, 0.0, 0.5, 0.79, 0.8, 1.0])),
    )
    profile = draw(st.sampled_from([None, None, "3g.20gb"]))
    return replace(found, gpu=replace(found.gpu, mig_profile=profile))


@st.composite
def servers(draw: st.DrawFn) -> ServerSnapshot:
    return a_server(*(draw(gpus(each)) for each in range(draw(st.integers(0, 5)))), at_s=NOW_S)


@st.composite
def jobs(draw: st.DrawFn, job_id: int) -> Job:
    job = a_job(
        job_id,
        draw(st.none() | GIB),
        at_s=draw(st.sampled_from([0.0, 990.0])),
        gpus=draw(st.sampled_from([1, 1, 2, 3, 6])),
        exclusive=draw(st.booleans()),
        priority=draw(st.sampled_from([-1, 0, 0, 1])),
        sharing=draw(st.sampled_from(["auto", "auto", "time", "mps", "mig"])),
    )
    return replace(job, exclusive_retry=draw(st.sampled_from([False, False, True])))


@st.composite
def queues(draw: st.DrawFn) -> list[Job]:
    return [draw(jobs(each)) for each in range(1, draw(st.integers(1, 7)) + 1)]


@pytest.fixture(params=policies(), scope="module")
def policy(request: pytest.FixtureRequest) -> Policy:
    return create(request.param)


def placements(policy: Policy, queue: list[Job], server: ServerSnapshot) -> list[Placement]:
    return [each for each in policy.decide(queue, server) if isinstance(each, Placement)]


@FEW
@given(queues(), servers())
def test_gives_each_job_exactly_one_answer(policy, queue, server):
    answers = policy.decide(queue, server)
    assert sorted(answer.job_id for answer in answers) == [each.id for each in queue]


@FEW
@given(queues(), servers())
def test_promises_no_more_than_a_gpu_has(policy, queue, server):
    promised = Counter[str]()
    for placement in placements(policy, queue, server):
        assert placement.promised_bytes > 0
        for uuid in placement.gpu_uuids:
            promised[uuid] += placement.promised_bytes
    available = {each.gpu.uuid: each.available_bytes or 0 for each in server.gpus}
    for uuid, total in promised.items():
        assert total <= available[uuid]


@FEW
@given(queues(), servers())
def test_promises_a_job_at_least_its_bound_unless_it_is_alone(policy, queue, server):
    bounds = {each.id: each.estimate.bound_bytes if each.estimate else None for each in queue}
    for placement in placements(policy, queue, server):
        bound = bounds[placement.job_id]
        assert placement.sharing == "exclusive" or (bound is not None and placement.promised_bytes >= bound)


@FEW
@given(queues(), servers())
def test_exclusive_holds_both_ways(policy, queue, server):
    answers = placements(policy, queue, server)
    tenants = {each.gpu.uuid: [mate.sharing for mate in each.residents] for each in server.gpus}
    crowded = {uuid for uuid, found in tenants.items() if found.count("exclusive") and len(found) > 1}
    assert not crowded, "the generator itself must not mix"
    for answer in answers:
        for uuid in answer.gpu_uuids:
            tenants[uuid].append(answer.sharing)
    for found in tenants.values():
        assert "exclusive" not in found or len(found) == 1


@FEW
@given(queues(), servers())
def test_a_job_that_asked_to_be_alone_is(policy, queue, server):
    must = {each.id for each in queue if each.spec.exclusive or each.exclusive_retry or each.estimate is None}
    assert all(
        placement.sharing == "exclusive" for placement in placements(policy, queue, server) if placement.job_id in must
    )


@FEW
@given(queues(), servers())
def test_a_job_shares_as_it_asked_or_not_at_all(policy, queue, server):
    asked = {each.id: each.spec.sharing for each in queue}
    instances = {each.gpu.uuid for each in server.gpus if each.gpu.mig_profile is not None}
    for placement in placements(policy, queue, server):
        share = asked[placement.job_id]
        ways = {"time": {"time-sliced", "exclusive"}, "mps": {"mps", "exclusive"}, "mig": {"exclusive"}}
        assert placement.sharing in ways.get(share, {placement.sharing})
        assert share != "mig" or instances.issuperset(placement.gpu_uuids)


@FEW
@given(queues(), servers())
def test_gangs_get_all_of_their_gpus_or_none(policy, queue, server):
    wanted = {each.id: each.spec.gpus for each in queue}
    for placement in placements(policy, queue, server):
        assert len(set(placement.gpu_uuids)) == len(placement.gpu_uuids) == wanted[placement.job_id]


@FEW
@given(queues(), servers())
def test_every_wait_has_a_reason_and_one_verdict_per_gpu(policy, queue, server):
    for each in policy.decide(queue, server):
        if isinstance(each, Deferral):
            assert each.reason
            assert [verdict.gpu_uuid for verdict in each.rejections] == [gpu.gpu.uuid for gpu in server.gpus]
            assert all(verdict.rule and verdict.reason for verdict in each.rejections)


@FEW
@given(queues(), servers())
def test_unknown_memory_in_use_admits_nothing(policy, queue, server):
    blind = ServerSnapshot(at_s=NOW_S, gpus=tuple(replace(each, foreign_bytes=None) for each in server.gpus))
    answers = policy.decide(queue, blind)
    assert all(isinstance(answer, Deferral) for answer in answers)
    first = next(answer for answer in answers if isinstance(answer, Deferral))
    assert {rejection.rule for rejection in first.rejections} <= {"stale_telemetry"}


@FEW
@given(queues(), servers(), st.randoms(use_true_random=False))
def test_the_same_question_gets_the_same_answer(policy, queue, server, random):
    shuffled = random.sample(queue, len(queue))
    again = create(policy.name)
    assert policy.decide(queue, server) == policy.decide(shuffled, server) == again.decide(queue, server)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_an_empty_server_takes_what_fits(policy, count, gpus):
    server = a_server(*(a_snapshot(each, at_s=NOW_S) for each in range(4)), at_s=NOW_S)
    queue = [a_job(each, 8, gpus=gpus) for each in range(1, count + 1)]
    assert len(placements(policy, queue, server)) >= min(count, 4 // gpus)


def test_an_empty_queue_gets_no_answers(policy):
    assert policy.decide([], a_server(a_snapshot())) == []
