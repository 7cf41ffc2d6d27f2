"""The MPS service: who becomes a client, with which limits, whose fault an exit was, when control daemons stop."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from builders import a_job, a_spec
from cotenant.core.events import AttemptExited
from cotenant.core.job import Attempt, AttemptExit
from cotenant.core.placement import Placement
from cotenant.daemon.services.mps import PIPE, MpsService


class Monitor:
    """Records the calls of the service; `ours` are the control daemons that exist."""

    nowhere = "/ours/nobody"
    available = True

    def __init__(self, ours=()):
        self.ours = set(ours)
        self.unstoppable = set()
        self.stopped = []

    def known(self):
        return set(self.ours)

    def is_ours(self, pipe):
        return pipe.startswith("/ours/")

    def server_failed_under(self, key, *, ran_s, has_other_clients):
        return (key, ran_s, has_other_clients) == (("GPU-a", 1234), 5.0, True)

    def client_env(self, uuid, uid, *, memory_limit_bytes, thread_percent):
        self.ours.add((uuid, uid))
        return {"PIPE": uuid, "LIMIT": str(memory_limit_bytes), "PERCENT": str(thread_percent)}

    def stop_all_but(self, in_use):
        self.stopped.append(set(in_use))
        self.ours &= set(in_use) | self.unstoppable


def placement(sharing="mps", uuids=("GPU-a",), **fields):
    return Placement(job_id=1, gpu_uuids=uuids, sharing=sharing, promised_bytes=700, **fields)


def running(job_id, place, uid=1234):
    attempt = Attempt(number=1, placement=place, placed_at_s=0.0)
    return replace(a_job(job_id, uid=uid), attempts=(attempt,))


SPEC = a_spec(uid=1234)


def test_a_client_gets_the_pipe_its_memory_limit_and_its_share_of_the_sms():
    service = MpsService(Monitor(), thread_percent=40.0)
    assert service.prepare(SPEC, placement()) == {"PIPE": "GPU-a", "LIMIT": "700", "PERCENT": "40.0"}
    assert service.prepare(SPEC, placement(memory_limit_bytes=600))["LIMIT"] == "600"


@pytest.mark.parametrize(
    "place",
    [placement("time-sliced"), placement("exclusive"), placement("mig"), placement(uuids=("GPU-a", "GPU-b"))],
)
def test_only_mps_placements_on_one_gpu_become_clients(place):
    mps = Monitor()
    assert MpsService(mps).prepare(SPEC, place) == {}
    assert mps.ours == set()


@pytest.mark.parametrize(
    ("spec", "pipe"),
    [
        pytest.param({"sharing": "time"}, "/ours/nobody", id="asks for time slicing"),
        pytest.param({"env": {PIPE: "/ours/x/pipe"}}, "/ours/nobody", id="submitted by a client of ours"),
        pytest.param({"env": {PIPE: "/theirs"}}, None, id="connects to another control daemon on purpose"),
    ],
)
def test_other_attempts_do_not_become_clients_by_accident(spec, pipe):
    assert MpsService(Monitor()).prepare(a_spec(**spec), placement("time-sliced")).get(PIPE) == pipe


def exit_of(job, code=1, reason="exited"):
    end = AttemptExit(exit_code=code, signal=None, reason=reason)
    return AttemptExited(at_s=5.0, cause="t", job_id=job.id, attempt=1, exit=end, peak_observed_bytes={})


def test_a_fault_counts_only_with_another_living_client_of_the_same_server():
    service = MpsService(Monitor())
    job = running(1, placement())
    others = {
        True: [running(2, placement())],
        False: [
            job,
            running(2, placement(), uid=1),
            running(3, placement(uuids=("GPU-b",))),
            running(4, placement("time-sliced")),
        ],
    }
    for is_fault, alive in others.items():
        ended = service.ended(job, job.attempts[0], exit_of(job), lambda alive=alive: alive)
        assert ended.exit.mps_fault is is_fault
    apart = running(5, placement("time-sliced"))
    assert not service.ended(apart, apart.attempts[0], exit_of(apart), lambda: others[True]).exit.mps_fault


@pytest.mark.parametrize("end", [{"code": 0}, {"reason": "stopped"}, {"reason": "timeout"}])
def test_a_successful_exit_is_no_fault(end):
    job = running(1, placement())
    ended = MpsService(Monitor()).ended(job, job.attempts[0], exit_of(job, **end), lambda: [running(2, placement())])
    assert not ended.exit.mps_fault


def never():
    pytest.fail("scanned all jobs without need")


def test_control_daemons_stop_after_their_last_client():
    mps = Monitor()
    service = MpsService(mps)
    first, second = running(1, placement()), running(2, placement(uuids=("GPU-b",)))
    for job in (first, second):
        service.prepare(SPEC, job.attempts[0].placement)
    service.reconcile(lambda: [first, second, running(3, placement("time-sliced", uuids=("GPU-c",)))])
    assert mps.stopped == []
    service.reconcile(lambda: [second])
    assert mps.stopped == [{("GPU-b", 1234)}]
    service.reconcile(list)
    assert mps.ours == set()
    service.reconcile(never)


def test_a_control_daemon_that_does_not_stop_is_stopped_again():
    mps = Monitor()
    service = MpsService(mps)
    service.prepare(SPEC, placement())
    mps.unstoppable = {("GPU-a", 1234)}
    service.reconcile(list)
    service.reconcile(list)
    assert mps.stopped == [set(), set()]


def test_control_daemons_of_an_earlier_daemon_stop_too():
    mps = Monitor({("GPU-a", os.geteuid())})
    MpsService(mps).reconcile(list)
    assert mps.ours == set()
