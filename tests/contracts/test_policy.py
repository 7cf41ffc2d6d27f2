"""What every registered policy honors, on generated servers and queues."""

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
            job_id=1000 + 10 * place + i,
            sharing=sharing,
            placed_at_s=draw(st.sampled_from([0.0, NOW_S - 5])),
            first_active_at_s=draw(st.sampled_from([None, 10.0, NOW_S - 1])),
        )
        for i in range(count)
    )


@st.composite
def gpus(draw: st.DrawFn, place: int) -> GpuSnapshot:
    found = a_snapshot(
        place,
        gib=draw(st.sampled_from([24, 40, 80])),
        foreign=draw(st.sampled_from([None, 0, 0, 0.5, 3, 30])),
        residents=draw(residents(place)),
        at_s=NOW_S,
        smact=draw(st.sampled_from([None, 0.0, 0.5, 0.79, 0.8, 1.0])),
    )
    profile = draw(st.sampled_from([None, None, "3g.20gb"]))
    return replace(found, gpu=replace(found.gpu, mig_profile=profile))


@st.composite
def servers(draw: st.DrawFn) -> ServerSnapshot:
    return a_server(*(draw(gpus(place)) for place in range(draw(st.integers(0, 5)))), at_s=NOW_S)


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
    return [draw(jobs(job_id)) for job_id in range(1, draw(st.integers(1, 7)) + 1)]


@pytest.fixture(params=policies(), scope="module")
def policy(request: pytest.FixtureRequest) -> Policy:
    return create(request.param)


def placements(policy: Policy, queue: list[Job], server: ServerSnapshot) -> list[Placement]:
    return [answer for answer in policy.decide(queue, server) if isinstance(answer, Placement)]


@FEW
@given(queues(), servers())
def test_each_job_gets_exactly_one_answer(policy, queue, server):
    answers = policy.decide(queue, server)
    assert sorted(answer.job_id for answer in answers) == [job.id for job in queue]


@FEW
@given(queues(), servers())
def test_promises_do_not_exceed_available_memory(policy, queue, server):
    promised = Counter[str]()
    for placement in placements(policy, queue, server):
        assert placement.promised_bytes > 0
        for uuid in placement.gpu_uuids:
            promised[uuid] += placement.promised_bytes
    available = {view.gpu.uuid: view.available_bytes or 0 for view in server.gpus}
    for uuid, total in promised.items():
        assert total <= available[uuid]


@FEW
@given(queues(), servers())
def test_a_sharing_job_is_promised_at_least_its_bound(policy, queue, server):
    unknown = getattr(policy, "unknown_bytes", None)
    bounds = {job.id: job.estimate.bound_bytes if job.estimate else unknown for job in queue}
    for placement in placements(policy, queue, server):
        bound = bounds[placement.job_id]
        assert placement.sharing == "exclusive" or (bound is not None and placement.promised_bytes >= bound)


@FEW
@given(queues(), servers())
def test_an_exclusive_job_has_no_neighbors(policy, queue, server):
    answers = placements(policy, queue, server)
    tenants = {view.gpu.uuid: [mate.sharing for mate in view.residents] for view in server.gpus}
    crowded = {uuid for uuid, found in tenants.items() if found.count("exclusive") and len(found) > 1}
    assert not crowded, "the generator itself must not mix"
    for answer in answers:
        for uuid in answer.gpu_uuids:
            tenants[uuid].append(answer.sharing)
    for found in tenants.values():
        assert "exclusive" not in found or len(found) == 1


@FEW
@given(queues(), servers())
def test_an_exclusive_request_is_honored(policy, queue, server):
    takes_unknown = getattr(policy, "unknown_bytes", None) is not None
    must = {
        job.id
        for job in queue
        if job.spec.exclusive or (job.estimate is None and not takes_unknown)
        or (job.exclusive_retry and job.estimate is not None)
    }  # fmt: skip
    assert all(
        placement.sharing == "exclusive" for placement in placements(policy, queue, server) if placement.job_id in must
    )


@FEW
@given(queues(), servers())
def test_a_job_shares_as_requested_or_waits(policy, queue, server):
    requested = {job.id: job.spec.sharing for job in queue}
    instances = {view.gpu.uuid for view in server.gpus if view.gpu.mig_profile is not None}
    for placement in placements(policy, queue, server):
        share = requested[placement.job_id]
        ways = {"time": {"time-sliced", "exclusive"}, "mps": {"mps", "exclusive"}, "mig": {"exclusive"}}
        assert placement.sharing in ways.get(share, {placement.sharing})
        assert share != "mig" or instances.issuperset(placement.gpu_uuids)


@FEW
@given(queues(), servers())
def test_gangs_get_all_of_their_gpus_or_none(policy, queue, server):
    wanted = {job.id: job.spec.gpus for job in queue}
    for placement in placements(policy, queue, server):
        assert len(set(placement.gpu_uuids)) == len(placement.gpu_uuids) == wanted[placement.job_id]


@FEW
@given(queues(), servers())
def test_every_deferral_has_a_reason_and_one_rejection_per_gpu(policy, queue, server):
    for answer in policy.decide(queue, server):
        if isinstance(answer, Deferral):
            assert answer.reason
            assert [verdict.gpu_uuid for verdict in answer.rejections] == [gpu.gpu.uuid for gpu in server.gpus]
            assert all(verdict.rule and verdict.reason for verdict in answer.rejections)


@FEW
@given(queues(), servers())
def test_unknown_memory_in_use_admits_nothing(policy, queue, server):
    blind = ServerSnapshot(at_s=NOW_S, gpus=tuple(replace(view, foreign_bytes=None) for view in server.gpus))
    answers = policy.decide(queue, blind)
    assert all(isinstance(answer, Deferral) for answer in answers)
    first = next(answer for answer in answers if isinstance(answer, Deferral))
    assert {rejection.rule for rejection in first.rejections} <= {"stale_telemetry"}


@FEW
@given(queues(), servers(), st.randoms(use_true_random=False))
def test_equal_snapshots_get_equal_answers(policy, queue, server, random):
    shuffled = random.sample(queue, len(queue))
    again = create(policy.name)
    assert policy.decide(queue, server) == policy.decide(shuffled, server) == again.decide(queue, server)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.sampled_from([1, 2, 4]))
def test_an_empty_server_runs_a_job_that_fits(policy, count, gpus):
    server = a_server(*(a_snapshot(place, at_s=NOW_S) for place in range(4)), at_s=NOW_S)
    queue = [a_job(job_id, 8, gpus=gpus) for job_id in range(1, count + 1)]
    assert len(placements(policy, queue, server)) >= min(count, 4 // gpus)


def test_an_empty_queue_gets_no_answers(policy):
    assert policy.decide([], a_server(a_snapshot())) == []
