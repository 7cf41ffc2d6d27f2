"""The manager and its policy at work: what the policy is offered, and how its answers are checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_gpu, a_job, a_resident, a_server, a_snapshot
from cotenant.core.events import AttemptExited, JobCancelled, Stop
from cotenant.core.job import AttemptExit, Queued
from cotenant.core.placement import Deferral, Placement
from cotenant.core.units import GiB
from cotenant.scheduling.explain import name_neighbors
from cotenant.scheduling.placement.snapshot_adapter import SnapshotPolicyAdapter
from cotenant.scheduling.policies import create
from cotenant.scheduling.policy_driver import broken_promise
from managers import OK, WorkingLife, launches


def test_a_job_that_outgrows_its_promise_is_reported_and_counts_with_its_use():
    life = WorkingLife(policy="first-fit")
    life.submit(1, gib=8)
    life.start(1, holds=30)
    life.pass_(60)
    assert (
        life.manager.explain(1).reason == "runs on GPU 0 (time-sliced), 8.0 GiB promised, exceeded: 30.0 GiB observed"
    )
    assert life.submit(2, gib=11) == []
    assert life.manager.explain(2).rejections[0].reason == "needs 11.0 GiB, 10.0 GiB available"


def test_a_sample_that_becomes_stale_admits_no_job():
    life = WorkingLife(gpus=2, policy=create("first-fit", {"warmup_s": 0}), stale_after_s=5.0)
    assert life.submit(1)
    life.at_s += 6.0
    assert life.submit(2) == []
    assert life.manager.explain(2).rejections[0].rule == "stale_telemetry"
    assert launches(life.pass_(1)) == [2]


def test_samples_from_after_a_clock_set_back_are_stale():
    life = WorkingLife(gpus=2, policy=create("first-fit", {"warmup_s": 0}), stale_after_s=5.0)
    life.pass_(30)
    assert life.submit(1)
    life.at_s = 3.0
    assert life.submit(2) == []
    assert life.manager.explain(2).rejections[0].rule == "stale_telemetry"
    assert launches(life.pass_(1)) == [2]


def test_a_new_gpu_is_used_and_a_missing_one_is_not():
    life = WorkingLife(policy="exclusive")
    life.submit(1)
    life.submit(2)
    life.gpus = tuple(a_gpu(index) for index in range(2))
    assert launches(life.pass_(1)) == [2]
    life.gpus = life.gpus[1:]
    life.pass_(1)
    life.submit(3)
    assert life.manager.explain(3).reason == "GPU 1: job 2 has it exclusively"


def test_a_cancelled_job_is_not_placed():
    life = WorkingLife(policy="exclusive")
    life.submit(1)
    life.submit(2)
    life.send(JobCancelled(at_s=life.at_s, cause="test", job_id=2))
    assert launches(life.send(replace_exit(life, 1))) == []


def replace_exit(life, job_id):
    return AttemptExited(at_s=life.at_s, cause="test", job_id=job_id, attempt=1, exit=OK, peak_observed_bytes={})


def test_a_time_slice_ends_only_when_other_jobs_wait():
    life = WorkingLife(policy="exclusive", time_slice_grace_s=100.0)
    life.submit(1, time_slice_s=60.0)
    life.start(1)
    assert life.pass_(90) == []
    life.submit(2)
    (stop,) = [command for command in life.pass_(1) if isinstance(command, Stop)]
    assert (stop.job_id, stop.cause, stop.grace_s) == (1, "time slice over", 100.0)
    assert life.pass_(30) == [], "one stop"
    assert launches(life.end(1, AttemptExit(exit_code=0, signal=None, reason="stopped"))) == [2]
    job = life.manager.jobs[1]
    assert job.state == Queued(since_s=life.at_s, reason="its time slice was over")
    assert job.uncounted_attempts == 1


class Odd:
    """A policy that is no composition: the last job goes to the last GPU, alone."""

    name = "odd"

    def decide(self, queue, server):
        *others, last = queue
        gpu = server.gpus[-1]
        if gpu.residents or gpu.available_bytes is None:
            return [Deferral(job_id=job.id, reason="taken") for job in queue]
        place = Placement(
            job_id=last.id, gpu_uuids=(gpu.gpu.uuid,), sharing="exclusive", promised_bytes=gpu.available_bytes
        )
        return [*(Deferral(job_id=other.id, reason="not the last") for other in others), place]


def test_a_policy_with_only_decide_is_adapted():
    life = WorkingLife(gpus=2, policy=Odd())
    assert [launch.job_id for launch in life.submit(1)] == [1]
    assert life.submit(2) == []
    assert life.submit(3) == []
    assert life.manager.explain(2).reason == "taken"
    life.start(1)
    assert launches(life.end(1)) == [3]
    assert life.manager.explain(2).reason == "not the last"


def test_the_adapter_tracks_placements_between_samples():
    adapter = SnapshotPolicyAdapter(Odd())
    adapter.update(a_snapshot(0))
    for job_id in (1, 2):
        adapter.add(a_job(job_id, at_s=float(job_id)))
    assert [placement.job_id for placement in adapter.decide(0.0)] == [2]
    assert adapter.decide(1.0) == []
    assert (adapter.waiting, adapter.explain(1, 1.0).reason) == (1, "taken")
    adapter.release(2)
    assert [placement.job_id for placement in adapter.decide(2.0)] == [1]


def test_promises_are_rounded_up_to_16_mib():
    life = WorkingLife(policy="first-fit")
    (placed,) = life.submit(1, gib=3.001)
    step = 16 * 2**20
    assert placed.placement.promised_bytes % step == 0
    assert 0 <= placed.placement.promised_bytes - 3.001 * GiB < step


def test_an_invalid_placement_does_not_stop_the_other_jobs():
    class Wrong(Odd):
        def decide(self, queue, server):
            answers = super().decide(queue, server)
            return [
                replace(answer, promised_bytes=2**60) if isinstance(answer, Placement) else answer for answer in answers
            ]

    life = WorkingLife(policy=Wrong())
    assert life.submit(1) == []
    assert life.manager.explain(1).reason.startswith("placement by policy `odd` refused: ")
    assert isinstance(life.manager.jobs[1].state, Queued)


def test_ids_of_other_users_jobs_are_redacted():
    life = WorkingLife()
    for job_id, uid in ((1, 7), (2, 7), (3, 8)):
        life.submit(job_id, uid=uid)
    assert life.manager.redact_ids(life.manager.jobs[1], (2, 3, 99)) == (2, None, None)


@pytest.mark.parametrize(
    ("neighbor_ids", "words"),
    [
        ((3,), "job 3"),
        ((3, 4), "jobs 3, 4"),
        ((None,), "another user's job"),
        ((None, None), "2 jobs of other users"),
        ((3, None), "job 3 and 1 of other users"),
    ],
)
def test_neighbors_are_listed_with_redacted_ones_counted(neighbor_ids, words):
    assert name_neighbors(neighbor_ids) == words


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
def test_placement_checker_refuses_overcommitted_placements(uuids, gib, sharing, broken):
    server = a_server(
        a_snapshot(0),
        a_snapshot(1, residents=(a_resident(8),)),
        a_snapshot(2, residents=(a_resident(8, sharing="exclusive"),)),
        a_snapshot(3, foreign=None),
    )
    placement = Placement(job_id=1, gpu_uuids=uuids, sharing=sharing, promised_bytes=int(gib * GiB))
    assert broken_promise(server, placement, 1) == broken
