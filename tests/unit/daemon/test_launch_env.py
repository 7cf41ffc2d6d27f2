"""Who becomes a client of MPS, with which limits, and when the control daemons end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from builders import a_spec
from cotenant.core.placement import Placement
from cotenant.daemon.launch_env import LaunchEnv

SIM = {"COTENANT_SIM_SERVER": "/x"}


class Mps:
    """Remembers what it was asked; `ours` are the control daemons there are."""

    def __init__(self, ours=()):
        self.ours = set(ours)
        self.stays = set()
        self.stopped = []

    def known(self):
        return set(self.ours)

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
