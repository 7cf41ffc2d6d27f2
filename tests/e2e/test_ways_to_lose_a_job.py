"""Each way in which CARMA was found to lose a job or its service, and what happens here.

Telemetry that fails and GPUs that vanish are in `unit/daemon/monitoring/test_monitor.py`, crashes in `test_daemon.py`.
"""

from __future__ import annotations

import json
import os
import pwd
import socket
import time
from pathlib import Path

import pytest

from cotenant.core.errors import UsageError


@pytest.mark.parametrize(
    "name", ["a+b", "a b'c\"d", "-rf", "%j", "OOM unsuccessful", "ä\udcff", "$(touch x)", "; touch x"]
)
def test_any_folder_and_file_can_be_named(server, name):
    folder = server.root / name
    folder.mkdir()
    done = server.cli(
        "submit", "--gpu-mem", "1G", "-o", "out", "--parsable", "--", "sh", "-c", "pwd; exit 3", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    view = server.wait(int(done.stdout))
    assert (view["state"], view["exit_code"]) == ("FAILED", 3)  # and not out of memory, whatever the path says
    assert (folder / "out").read_bytes() == bytes(folder) + b"\n"
    assert [path.name for path in folder.iterdir()] == ["out"]  # no shell has read the name


def test_slow_and_broken_clients_do_not_delay_others(server):
    slow = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for i, client in enumerate(slow):
        client.connect(str(server.socket))
        client.sendall(b"POST /v1/jobs HTTP/1.1\r\ncontent-length: 1000\r\n\r\n{"[: 20 + i])
    assert server.wait(server.submit("true"))["state"] == "COMPLETED"
    for client in slow:
        client.close()
    assert server.wait(server.submit("true"))["state"] == "COMPLETED"


def test_long_requests_arrive_whole(server):
    words = ["x" * 100_000 for _ in range(15)]
    job = server.submit("sh", "-c", 'printf %s "$*" | wc -c', "sh", *words)
    assert server.wait(job)["state"] == "COMPLETED"
    assert server.cli("logs", str(job)).stdout.strip() == str(15 * 100_000 + 14)


def test_a_job_that_cannot_start_fails_alone_with_a_reason(server):
    nowhere = server.submit("true", stdout_path="/no/such/folder/out", stderr_path="/no/such/folder/out")
    gone = server.submit("true", workdir="/no/such/folder")
    missing = server.submit("no-such-command-at-all", "x")
    fails = server.submit("exit 1")
    fine = server.submit("true", after_any=[fails])
    reasons = [server.wait(job)["reason"] for job in (nowhere, gone, missing, fails)]
    assert [reason.partition(":")[0] for reason in reasons] == ["failed"] * 4
    assert "/no/such/folder/out" in reasons[0]
    assert "/no/such/folder" in reasons[1]
    assert "no-such-command-at-all" in reasons[2]
    assert server.wait(fine)["state"] == "COMPLETED"
    assert [server.client.job(job)["attempts"] for job in (nowhere, gone, missing, fails)] == [1] * 4  # none loops


def test_an_incomplete_job_is_refused_before_it_is_taken(server):
    (server.root / "short.rad").write_text("# c\ntrue\nm.model\ndata\n32\n")
    for arguments in (["short.rad"], ["--gpu-mem", "0", "--", "true"], ["--gpus", "0", "--", "true"], ["gone.py"]):
        done = server.cli("submit", "--json", *arguments)
        assert (done.returncode, json.loads(done.stdout)["error"]["exit_code"]) == (2, 2), arguments
    assert server.client.jobs() == []


@pytest.mark.parametrize(
    "job",
    [
        {},
        {"command": []},
        {"command": [""]},
        {"command": None},
        {"command": ["true"]},
        {"command": "true"},
        [],
        None,
        7,
    ],
    ids=repr,
)
def test_a_request_without_what_it_takes_is_refused_and_harms_nobody(server, job):
    with pytest.raises(UsageError):
        server.client.submit([job])
    assert server.client.jobs() == []
    assert server.wait(server.submit("true"))["state"] == "COMPLETED"


def test_clients_leave_nothing_open(server):
    def open_files():
        return len(list(Path(f"/proc/{server.daemon.pid}/fd").iterdir()))

    def visit():
        for _ in range(20):
            server.client.status()
            with socket.socket(socket.AF_UNIX) as rude:
                rude.connect(str(server.socket))
                rude.sendall(b"GET /v1/jobs HTTP/1.1\r\n")

    visit()
    before = open_files()
    for _ in range(5):
        visit()
    give_up_s = time.monotonic() + 60
    while open_files() > before + 10:  # the daemon sees a closed connection when it next looks
        assert time.monotonic() < give_up_s, (before, open_files())


def test_the_user_of_a_job_comes_from_the_kernel(server):
    job = server.submit("id -u", user="mallory", uid=4242)
    view = server.wait(job)
    assert (view["state"], view["user"]) == ("COMPLETED", pwd.getpwuid(os.getuid()).pw_name)
    assert server.cli("logs", str(job)).stdout == f"{os.getuid()}\n"


def test_the_log_of_a_job_that_truncates_it_is_read_correctly(server):
    oom = "printf 'Traceback (most recent call last):\\n  x\\ntorch.OutOfMemoryError: CUDA out of memory.\\n' >&2"
    job = server.submit(
        f"{oom}; : > err; echo fine >&2; exit 4", stdout_path=f"{server.root}/out", stderr_path=f"{server.root}/err"
    )
    view = server.wait(job)
    assert (view["state"], view["exit_code"], view["attempts"]) == ("FAILED", 4, 1)


def test_oom_words_in_the_output_are_no_failure(server):
    job = server.submit("echo CUDA out of memory RESOURCE_EXHAUSTED OOM unsuccessful >&2; exit 0")
    assert server.wait(job)["state"] == "COMPLETED"
    job = server.submit("echo CUDA out of memory RESOURCE_EXHAUSTED OOM unsuccessful >&2; exit 1")
    view = server.wait(job)
    assert (view["state"], view["attempts"]) == ("FAILED", 1)
