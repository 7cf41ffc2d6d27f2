"""Limits of who asks, as the kernel tells them."""

from __future__ import annotations

import os
import resource
import subprocess

import pytest

from cotenant.daemon.access.limits import limits_of
from cotenant.daemon.access.sockets import Peer

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")


@pytest.fixture
def other():
    """A process of another user with a limit of its own."""
    process = subprocess.Popen(
        ["sh", "-c", "ulimit -n 123; echo; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=NOBODY,
        group=NOBODY,
        cwd="/",
    )
    process.stdout.readline()
    yield process
    process.communicate()


@as_root
def test_of_another_user(other):
    found = limits_of(Peer(pid=other.pid, uid=NOBODY, gid=NOBODY))
    assert found["nofile"] == (123, 123)
    ours = {
        name.removeprefix("RLIMIT_").lower(): getattr(resource, name) for name in dir(resource) if "RLIMIT_" in name
    }
    del ours["nofile"], ours["ofile"]
    assert {name: found[name] for name in ours} == {name: resource.getrlimit(number) for name, number in ours.items()}


@as_root
def test_none_of_a_process_that_is_somebody_else_by_now(other):
    assert limits_of(Peer(pid=other.pid, uid=NOBODY - 1, gid=NOBODY)) is None
    other.communicate()
    assert limits_of(Peer(pid=other.pid, uid=NOBODY, gid=NOBODY)) is None


@pytest.mark.parametrize(
    "peer",
    [
        pytest.param(Peer(pid=os.getpid(), uid=os.geteuid(), gid=0), id="ourselves"),
        pytest.param(Peer(pid=0, uid=NOBODY, gid=0), id="on another machine"),
        pytest.param(Peer(pid=os.getpid(), uid=NOBODY, gid=0, token="t"), id="with a token"),
    ],
)
def test_none_of_others(peer):
    assert limits_of(peer) is None
