"""Resource limits of the submitting process, read from the kernel."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from cotenant.core.errors import NotPermitted
from cotenant.daemon.auth.resource_limits import limits_of
from cotenant.daemon.auth.unix_socket import Peer

NOBODY_UID = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may be another user")


@pytest.fixture
def other():
    """A process of another user with a limit of its own."""
    process = subprocess.Popen(
        ["sh", "-c", "ulimit -n 123; echo; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=NOBODY_UID,
        group=NOBODY_UID,
        cwd="/",
    )
    process.stdout.readline()
    yield process
    process.communicate()


@as_root
def test_limits_of_another_users_process_are_read(other):
    found = limits_of(Peer(pid=other.pid, uid=NOBODY_UID, gid=NOBODY_UID))
    assert found["nofile"] == (123, 123)
    ours = {
        name.removeprefix("RLIMIT_").lower(): getattr(resource, name) for name in dir(resource) if "RLIMIT_" in name
    }
    del ours["nofile"], ours["ofile"]
    assert {name: found[name] for name in ours} == {name: resource.getrlimit(number) for name, number in ours.items()}


@as_root
def test_a_peer_that_has_exited_is_refused(other):
    with pytest.raises(NotPermitted, match=f"process {other.pid}, which opened the connection, has ended"):
        limits_of(Peer(pid=other.pid, uid=NOBODY_UID - 1, gid=NOBODY_UID))
    other.communicate()
    with pytest.raises(NotPermitted):
        limits_of(Peer(pid=other.pid, uid=NOBODY_UID, gid=NOBODY_UID))


@as_root
def test_limits_of_an_untraceable_process_are_read():
    """As sshd, through which a socket may be forwarded; its files in /proc are root's."""
    script = "import ctypes, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (123, 123))\n"
    script += "ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print(flush=True); sys.stdin.read()"  # PR_SET_DUMPABLE
    command = ["/usr/bin/python3", "-I", "-c", script]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, user=NOBODY_UID, group=NOBODY_UID, cwd="/"
    ) as process:
        process.stdout.readline()
        assert Path(f"/proc/{process.pid}/limits").stat().st_uid == 0
        found = limits_of(Peer(pid=process.pid, uid=NOBODY_UID, gid=NOBODY_UID))
    assert found["nofile"] == (123, 123)


def test_there_are_no_limits_where_all_jobs_run_as_one_user(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY_UID)
    assert limits_of(Peer(pid=os.getpid(), uid=NOBODY_UID - 1, gid=0)) is None


@pytest.mark.parametrize(
    "peer",
    [
        pytest.param(Peer(pid=os.getpid(), uid=os.geteuid(), gid=0), id="ourselves"),
        pytest.param(Peer(pid=0, uid=NOBODY_UID, gid=0), id="on another machine"),
        pytest.param(Peer(pid=os.getpid(), uid=NOBODY_UID, gid=0, token="t"), id="with a token"),
    ],
)
def test_there_are_no_limits_for_own_remote_and_token_peers(peer):
    assert limits_of(peer) is None
