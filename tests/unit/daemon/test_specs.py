"""What a client may ask for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from builders import a_spec
from cotenant.core.errors import NotPermitted, UsageError
from cotenant.daemon import specs
from cotenant.daemon.api import check_peer
from cotenant.daemon.sockets import Peer

PEER = Peer(pid=1, uid=os.getuid(), gid=0)
JOB = {"command": ["true"], "workdir": "/tmp", "env": {"A": "1"}, "name": "n"}


def test_owner_is_the_peer_whatever_the_client_says():
    spec = specs.spec_of({**JOB, "user": "somebody", "uid": 4242}, PEER)
    assert (spec.user, spec.uid) == (specs.user_name(os.getuid()), os.getuid())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"command": []}, "no command", id="no command"),
        pytest.param({"command": [""]}, "no command", id="empty command"),
        pytest.param({"command": "true"}, "wanted an array", id="command as text"),
        pytest.param({"command": ["a\0b"]}, "NUL byte", id="NUL"),
        pytest.param({"env": {"A": "\0"}}, "NUL byte", id="NUL in environment"),
        pytest.param({"env": {"A=B": "1"}}, "with `=` in it", id="name of variable"),
        pytest.param({"workdir": "here"}, "`here` is not an absolute path", id="relative folder"),
        pytest.param({"stdout_path": "out"}, "`out` is not an absolute path", id="relative output"),
        pytest.param({"gpus": 0}, "wanted 1 to 1024", id="no GPU"),
        pytest.param({"max_attempts": 0}, "wanted 1 to 100", id="no attempt"),
        pytest.param({"declared_bytes": 0}, "`declared_bytes` is 0", id="no memory"),
        pytest.param({"time_limit_s": float("nan")}, "`time_limit_s` is nan", id="no number"),
        pytest.param({"slowdown_bound": -1.0}, "`slowdown_bound` is -1.0", id="negative bound"),
        pytest.param({"estimator": "traecd"}, "no estimator named `traecd`", id="estimator"),
        pytest.param({"colour": "red"}, "unknown fields: colour", id="unknown field"),
    ],
)
def test_refused(change, reason):
    with pytest.raises(UsageError) as caught:
        specs.spec_of({**JOB, **change}, PEER)
    assert reason in str(caught.value)


@pytest.mark.parametrize("told", [None, [], "true", 3])
def test_no_object_is_no_job(told):
    with pytest.raises(UsageError, match="must be a JSON object"):
        specs.spec_of(told, PEER)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        pytest.param("/o/%j.txt", "/o/17.txt", id="id"),
        pytest.param("/o/%x-%j", "/o/a_b-17", id="name, made safe for a path"),
        pytest.param("/o/100%%j", "/o/100%j", id="percent"),
        pytest.param("/o/%%%j", "/o/%17", id="percent, then id"),
        pytest.param("/o/%q%", "/o/%q%", id="others stay"),
    ],
)
def test_output_path(pattern, path):
    spec = specs.numbered(a_spec(name="a/b", stdout_path=pattern), 17)
    assert (spec.stdout_path, spec.stderr_path) == (path, None)


@pytest.mark.parametrize(("uid", "own"), [(1000, 1000), (0, 1000), (0, 0)])
def test_own_user_and_root_are_let_in(uid, own):
    check_peer(Peer(pid=1, uid=uid, gid=0), own_uid=own)


@pytest.mark.parametrize(("uid", "own"), [(1001, 1000), (1000, 0)])
def test_others_are_not(uid, own):
    with pytest.raises(NotPermitted, match=f"uid {uid} may not"):
        check_peer(Peer(pid=1, uid=uid, gid=0), own_uid=own)


def test_client_needs_no_server_library():
    code = "import sys, cotenant.daemon.client; print(*{'starlette', 'uvicorn', 'typer', 'sqlite3'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
