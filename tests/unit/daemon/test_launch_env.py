"""Who becomes a client of MPS, with which limits, and when the control daemons end."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from builders import a_job, a_spec
from cotenant.core.job import Attempt
from cotenant.core.placement import Placement
from cotenant.daemon.attempt_services import PIPE, LaunchEnv

SIM = {"COTENANT_SIM_SERVER": "/x"}


class Mps:
    """Remembers what it was asked; `ours` are the control daemons there are."""

    nowhere = "/ours/nobody"

    def __init__(self, ours=()):
        self.ours = set(ours)
        self.stays = set()
        self.stopped = []

    def known(self):
        return set(self.ours)

    def is_ours(self, pipe):
        return pipe.startswith("/ours/")

    def server_failed_under(self, owner, *, ran_s, mates):
        return (owner, ran_s, mates) == (("GPU-a", 1234), 5.0, True)

    def client_env(self, uuid, uid, *, memory_limit_bytes, thread_percent):
        self.ours.add((uuid, uid))
        return {"PIPE": uuid, "LIMIT": str(memory_limit_bytes), "PERCENT": str(thread_percent)}

    def stop_all_but(self, in_use):
        self.stopped.append(set(in_use))
        self.ours &= set(in_use) | self.stays


def placement(sharing="mps", uuids=("GPU-a",), **fields):
    return Placement(job_id=1, gpu_uuids=uuids, sharing=sharing, promised_bytes=700, **fields)


SPEC = a_spec(uid=1234)


def test_client():
    env = LaunchEnv({"A": "1"}, Mps(), thread_percent=40.0)
    assert env(SPEC, placement()) == {"A": "1", "PIPE": "GPU-a", "LIMIT": "700", "PERCENT": "40.0"}
    assert env(SPEC, placement(memory_limit_bytes=600))["LIMIT"] == "600"


@pytest.mark.parametrize(
    "place",
    [placement("time-sliced"), placement("exclusive"), placement("mig"), placement(uuids=("GPU-a", "GPU-b"))],
)
def test_no_client(place):
    mps = Mps()
    assert LaunchEnv({}, mps)(SPEC, place) == {}
    assert mps.ours == set()


@pytest.mark.parametrize(
    ("spec", "pipe"),
    [
        pytest.param({"sharing": "time"}, "/ours/nobody", id="wants no MPS, whoever runs it"),
        pytest.param({"env": {PIPE: "/ours/x/pipe"}}, "/ours/nobody", id="submitted by a client of ours"),
        pytest.param({"env": {PIPE: "/theirs"}}, None, id="its own business"),
    ],
)
def test_who_is_no_client_does_not_become_one_by_accident(spec, pipe):
    assert LaunchEnv({}, Mps())(a_spec(**spec), placement("time-sliced")).get(PIPE) == pipe
    assert LaunchEnv({})(a_spec(**spec), placement("time-sliced")).get(PIPE) is None


def test_failed_under_tells_of_living_mates_on_the_same_server():
    env = LaunchEnv({}, Mps())

    def a_client(job_id, place, uid=1234):
        attempt = Attempt(number=1, placement=place, placed_at_s=0.0)
        return replace(a_job(job_id, uid=uid), attempts=(attempt,))

    job = a_client(1, placement())
    others = {
        True: [a_client(2, placement())],
        False: [
            job,
            a_client(2, placement(), uid=1),
            a_client(3, placement(uuids=("GPU-b",))),
            a_client(4, placement("time-sliced")),
        ],
    }
    for mates, live in others.items():
        assert env.server_failed_under(job, job.attempts[0], 5.0, lambda live=live: live) is mates
    apart = a_client(5, placement("time-sliced"))
    assert not env.server_failed_under(apart, apart.attempts[0], 5.0, lambda: others[True])
    assert not LaunchEnv(SIM).server_failed_under(job, job.attempts[0], 5.0, lambda: others[True])


def test_simulated_server_has_no_mps():
    env = LaunchEnv(SIM)
    assert env(SPEC, placement()) == SIM
    env.tidy(lambda: pytest.fail("asked without need"))


@pytest.mark.parametrize(
    ("own", "path"), [({}, "/site"), ({"PYTHONPATH": ""}, "/site"), ({"PYTHONPATH": "/a:/b"}, "/site:/a:/b")]
)
def test_the_folder_for_python_comes_first(own, path):
    env = LaunchEnv(SIM, site=Path("/site"))
    assert env(a_spec(env=own), placement("time-sliced")) == {**SIM, "PYTHONPATH": path}


def test_control_daemons_end_after_their_last_client():
    mps = Mps()
    env = LaunchEnv({}, mps)
    first, second = (SPEC, placement()), (SPEC, placement(uuids=("GPU-b",)))
    for each in (first, second):
        env(*each)
    env.tidy(lambda: [first, second, (SPEC, placement("time-sliced", uuids=("GPU-c",)))])
    assert mps.stopped == []
    env.tidy(lambda: [second])
    assert mps.stopped == [{("GPU-b", 1234)}]
    env.tidy(list)
    assert mps.ours == set()
    env.tidy(lambda: pytest.fail("asked without need"))


def test_one_that_does_not_end_is_asked_again():
    mps = Mps()
    env = LaunchEnv({}, mps)
    env(SPEC, placement())
    mps.stays = {("GPU-a", 1234)}
    env.tidy(list)
    env.tidy(list)
    assert mps.stopped == [set(), set()]


def test_those_of_an_earlier_daemon_are_ended_too():
    mps = Mps({("GPU-a", os.geteuid())})
    LaunchEnv({}, mps).tidy(list)
    assert mps.ours == set()
