"""Validation of the jobs and updates that clients submit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from builders import a_spec
from cotenant.core.errors import UsageError
from cotenant.core.job import ArrayTask
from cotenant.daemon.api.submission import job_specs
from cotenant.daemon.auth.unix_socket import Peer

PEER = Peer(pid=1, uid=os.getuid(), gid=0)
HOST = socket.gethostname().partition(".")[0]
JOB = {"command": ["true"], "workdir": "/tmp", "env": {"A": "1"}, "name": "n"}


def test_owner_is_the_peer_whatever_the_client_says():
    spec = job_specs.parse_spec({**JOB, "user": "somebody", "uid": 4242}, PEER)
    assert (spec.user, spec.uid) == (job_specs.user_name(os.getuid()), os.getuid())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param({"command": []}, "no command", id="no command"),
        pytest.param({"command": [""]}, "no command", id="empty command"),
        pytest.param({"command": "true"}, "wanted an array", id="command as text"),
        pytest.param({"command": ["a\0b"]}, "U+0000", id="NUL"),
        pytest.param({"env": {"A": "\0"}}, "U+0000", id="NUL in environment"),
        pytest.param({"name": "a\0b", "stdout_path": "/x/%x"}, "U+0000", id="NUL in name"),
        pytest.param({"notify": "mail\0"}, "U+0000", id="NUL in notify"),
        pytest.param({"notify": "x" * 4097}, "`notify` has 4097 characters", id="long notify"),
        pytest.param({"env": {"A=B": "1"}}, "with `=` in it", id="name of variable"),
        pytest.param({"workdir": "here"}, "`here` is not an absolute path", id="relative folder"),
        pytest.param({"stdout_path": "out"}, "`out` is not an absolute path", id="relative output"),
        pytest.param({"gpus": 0}, "wanted 1 to 1024", id="no GPU"),
        pytest.param({"max_attempts": 0}, "wanted 1 to 100", id="no attempt"),
        pytest.param({"retries": -1}, "retried -1 times, wanted 0 to 100", id="fewer retries than none"),
        pytest.param({"time_slice_s": 0}, "`time_slice_s` is 0.0, wanted a number above zero", id="no time slice"),
        pytest.param({"declared_bytes": 0}, "`declared_bytes` is 0", id="no memory"),
        pytest.param({"time_limit_s": float("nan")}, "`time_limit_s` is nan", id="no number"),
        pytest.param({"time_limit_s": 6e12}, "a time limit of 6e+12 s is beyond ten years", id="too long"),
        pytest.param({"time_slice_s": 6e12}, "a time slice of 6e+12 s is beyond ten years", id="time slice too long"),
        pytest.param({"max_slowdown": -1.0}, "`max_slowdown` is -1.0", id="negative bound"),
        pytest.param({"estimator": "traecd"}, "no estimator named `traecd`", id="estimator"),
        pytest.param({"sharing": "mbs"}, "`value.sharing` is 'mbs'", id="no way to share"),
        pytest.param({"sharing": "mps", "gpus": 2}, "of 2 GPUs cannot share them by mps", id="MPS on several GPUs"),
        pytest.param({"sharing": "mig", "gpus": 2}, "of 2 GPUs cannot share them by mig", id="MIG on several GPUs"),
        pytest.param(
            {"sharing": "mps", "exclusive": True}, "exclusive GPUs and sharing by mps", id="exclusive and shared"
        ),
        pytest.param({"env": {"A": "x" * 2**17}}, "the kernel takes 6291456 and 131071", id="a word too long to run"),
        pytest.param({"command": ["x" * 2**16] * 97}, "have 6356", id="more than a program can be given"),
        pytest.param({"name": ""}, "the name of the job is empty", id="no name"),
        pytest.param({"name": "  "}, "the name of the job is empty", id="a name of spaces"),
        pytest.param({"name": "x" * 256}, "has 256 characters, wanted at most 255", id="a name that is a page"),
        pytest.param({"umask": -1}, "`umask` is -1", id="negative mask"),
        pytest.param({"umask": 0o1000}, "`umask` is 512, wanted 0 to 511", id="mask beyond the rights of files"),
        pytest.param({"colour": "red"}, "unknown fields: colour", id="unknown field"),
    ],
)
def test_invalid_jobs_are_refused(change, reason):
    with pytest.raises(UsageError) as caught:
        job_specs.parse_spec({**JOB, **change}, PEER)
    assert reason in str(caught.value)


@pytest.mark.parametrize("body", [None, [], "true", 3])
def test_a_job_that_is_not_an_object_is_refused(body):
    with pytest.raises(UsageError, match="must be a JSON object"):
        job_specs.parse_spec(body, PEER)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        pytest.param("/o/%j.txt", "/o/17.txt", id="id"),
        pytest.param("/o/%x-%j", "/o/a_b-17", id="name, made safe for a path"),
        pytest.param("/o/100%%j", "/o/100%j", id="percent"),
        pytest.param("/o/%%%j", "/o/%17", id="percent, then id"),
        pytest.param("/o/%q%-%s", "/o/%q%-%s", id="others stay"),
        pytest.param("/o/%n-%2t", "/o/0-00", id="node and task"),
        pytest.param("/o/%N", f"/o/{HOST}", id="host"),
    ],
)
def test_patterns_in_output_paths_are_expanded(pattern, path):
    spec = job_specs.expand_paths(a_spec(name="a/b", stdout_path=pattern), 17)
    assert (spec.stdout_path, spec.stderr_path) == (path, None)


def test_patterns_in_output_paths_of_array_tasks_are_expanded():
    array = ArrayTask(array_id=17, index=13)
    spec = job_specs.expand_paths(a_spec(array=array, stdout_path="/o/%A_%a-%j-%4a-%u-%x-%b"), 19)
    assert spec.stdout_path == "/o/17_13-19-0013-ann-job-3"
    assert job_specs.expand_paths(a_spec(stdout_path="/o/%A_%a"), 19).stdout_path == "/o/19_0"


def test_an_array_becomes_a_spec_for_each_task():
    body = [JOB, {**JOB, "array": {"tasks": [3, 5], "limit": 1}}, {**JOB, "array": {"tasks": [0]}}]
    found = job_specs.with_array_ids(job_specs.parse_specs(body, PEER), 10)
    assert [spec.array and (spec.array.array_id, spec.array.index, spec.array.limit) for spec in found] == [
        None,
        (11, 3, 1),
        (11, 5, 1),
        (13, 0, None),
    ]


@pytest.mark.parametrize(
    "array",
    [
        3,
        {},
        {"tasks": []},
        {"tasks": ["1"]},
        {"tasks": [True]},
        {"tasks": [1, 1]},
        {"tasks": [-1]},
        {"tasks": [1], "limit": 0},
        {"tasks": [1], "limit": 1.5},
        {"tasks": [1], "more": 1},
        {"tasks": list(range(10_001))},
    ],
)
def test_invalid_arrays_are_refused(array):
    with pytest.raises(UsageError, match="`array"):
        job_specs.parse_specs([{**JOB, "array": array}], PEER)


def test_a_client_cannot_put_its_job_into_an_array_of_others():
    with pytest.raises(UsageError, match="`array` must be"):
        job_specs.parse_specs([{**JOB, "array": {"type": "ArrayTask", "array_id": 3, "index": 1}}], PEER)


def test_limits_come_from_the_kernel_not_from_the_client(monkeypatch):
    monkeypatch.setattr(job_specs, "limits_of", lambda peer: {"nofile": (1, peer.pid)})
    body = {**JOB, "limits": {"nofile": [9, 9]}}
    assert job_specs.parse_spec(body, PEER).limits is None
    many = job_specs.parse_specs([body, {**body, "array": {"tasks": [1, 2]}}], PEER)
    assert [spec.limits for spec in many] == [{"nofile": (1, 1)}] * 3


def test_update_changes_sharing_retries_and_time_limit():
    fields = {"sharing": "time", "retries": 3, "time_slice_s": 60.0, "notify": None, "progress": "tqdm"}
    new = job_specs.with_changes(a_spec(notify="mail ann", limits={"core": (0, -1)}, umask=0o77), fields, 17)
    assert {name: getattr(new, name) for name in fields} == fields
    assert (new.limits, new.umask) == ({"core": (0, -1)}, 0o77)


def test_update_changes_the_updatable_fields():
    new = job_specs.with_changes(a_spec(), {"priority": 3, "after": [4], "stdout_path": "/o/%j"}, 17)
    assert (new.priority, new.after, new.stdout_path) == (3, (4,), "/o/17")


def test_an_update_does_not_expand_unchanged_paths():
    spec = a_spec(stdout_path="/o/%j", stderr_path="/e/100%j")
    new = job_specs.with_changes(spec, {"priority": 3, "stderr_path": "/e/%j"}, 17)
    assert (new.stdout_path, new.stderr_path) == ("/o/%j", "/e/17")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"command": ["rm"]}, "`command` of a job cannot be updated"),
        ({"uid": 0}, "`uid` of a job cannot be updated"),
        ({"workdir": "/"}, "`workdir` of a job cannot be updated"),
        ({"env": {}}, "`env` of a job cannot be updated"),
        ({"gpus": 0}, "requests 0 GPUs"),
        ({"gpus": "two"}, "job 17 cannot become that"),
        ({"priority": 10**7}, "is beyond"),
        ({"begin_at_s": float("inf")}, "`begin_at_s` is inf"),
        ({"stderr_path": "here"}, "not an absolute path"),
        ({"sharing": "mps", "exclusive": True}, "exclusive GPUs and sharing by mps"),
        ({"limits": {}}, "`limits` of a job cannot be updated"),
        ({"progress": "step"}, "has no group"),
    ],
)
def test_invalid_updates_are_refused(fields, reason):
    with pytest.raises(UsageError, match=reason):
        job_specs.with_changes(a_spec(), fields, 17)


def test_client_needs_no_server_library():
    code = "import sys, cotenant.daemon.client; print(*{'starlette', 'uvicorn', 'typer', 'sqlite3'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"
