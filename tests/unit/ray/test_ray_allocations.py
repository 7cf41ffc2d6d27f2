"""What a pilot is sent about allocations of Ray, without Ray: an answer of the bridge goes in, a report comes out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from cotenant.core.errors import BackendError, UsageError
from cotenant.hosts.keeper import mark_of
from cotenant.ray import allocations
from cotenant.ray.allocations import RayAllocations, open_allocations
from cotenant.ray.frames import frame_of

NAME = "cotenant-ab-1"
DEAD = {"id": "0a1b2c3d", "state": "ended", "reason": "its worker process has died", "node": ""}


@pytest.fixture
def reported(tmp_path, monkeypatch):
    """Gives the report for what the bridge says of `NAME`, at a time; `reported.mark` is the file of its keeper."""
    clock = [0.0]
    monkeypatch.setattr(allocations.time, "monotonic", lambda: clock[0])
    source = RayAllocations("auto", {"num_gpus": 1}, tmp_path, grace_s=5.0)

    def report(found, at_s=0.0):
        clock[0] = at_s
        monkeypatch.setattr(source, "_call", lambda *_, **__: {"found": {} if found is None else {NAME: found}})
        return source.report([NAME]).get(NAME)

    report.mark = mark_of(tmp_path / f"{NAME}.json")
    return report


def test_a_dead_actor_is_over_when_its_keeper_has_finished(reported):
    reported.mark.write_text("0a1b2c3d")
    assert reported(DEAD).state == "ending"
    assert reported(DEAD, at_s=14.0).state == "ending"
    reported.mark.unlink()
    report = reported(DEAD, at_s=14.1)
    assert (report.state, report.job_id, report.word) == ("ended", "0a1b2c3d", "its worker process has died")


def test_a_keeper_that_is_gone_with_its_node_is_waited_for_so_long(reported):
    reported.mark.write_text("0a1b2c3d")
    assert reported(DEAD).state == "ending"
    assert reported(DEAD, at_s=15.1).state == "ended"


def test_an_actor_that_a_new_head_does_not_know_may_live_a_minute_longer(reported):
    reported.mark.write_text("0a1b2c3d")
    assert reported(None).state == "ending"
    assert reported(None, at_s=74.9).state == "ending"
    report = reported(None, at_s=75.1)
    assert (report.state, report.job_id) == ("ended", "0a1b2c3d")
    reported.mark.unlink()
    assert reported(None) is None


def test_a_dead_actor_that_is_alive_again_was_only_out_of_reach(reported):
    reported.mark.write_text("0a1b2c3d")
    assert reported(DEAD).state == "ending"
    assert reported({**DEAD, "state": "running", "node": "n1"}, at_s=10.0).state == "running"
    assert reported(DEAD, at_s=20.0).state == "ending"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gpus": 1}, "`pilot.ray` has no key `gpus`"),
        ({"num_gpus": 0.5}, "`pilot.ray.num_gpus` is 0.5, wanted a whole number"),
        ({"num_gpus": True}, "wanted a whole number"),
        ({"num_gpus": 0}, "wanted whole GPUs, at least 1"),
        ({"resources": "a"}, "wanted a table"),
    ],
)
def test_what_the_table_must_not_say(settings, message, tmp_path):
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        open_allocations(settings, tmp_path, grace_s=1.0)


def test_a_python_without_ray_is_an_error_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(allocations.util, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="needs Ray in the daemon's Python"):
        open_allocations({"num_gpus": 1}, tmp_path, grace_s=1.0)


def test_a_bridge_that_cannot_connect_says_why(tmp_path, monkeypatch):
    (tmp_path / "ray.py").write_text("def init(**_): raise ConnectionError('nobody is there')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    source = RayAllocations("10.0.0.1:6379", {}, tmp_path, grace_s=1.0)
    with pytest.raises(BackendError, match=r"`10\.0\.0\.1:6379` cannot be reached: nobody is there"):
        source.report([NAME])


def test_a_relay_passes_orders_and_lines_on(tmp_path):
    path = str(tmp_path / "bridge")
    got = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()

        def serve():
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as source:
                got.append(json.loads(source.readline()))
                got.append(source.read())
                connection.sendall(frame_of(1, b"a line\n") + frame_of(2, b"a complaint\n"))

        thread = threading.Thread(target=serve)
        thread.start()
        done = subprocess.run(
            [sys.executable, "-m", "cotenant.ray.link", path, NAME, "agent", "--x"],
            input=b"orders\n",
            capture_output=True,
            check=False,
            timeout=60,
            env={**os.environ},
        )
        thread.join()
    assert got == [{"do": "attach", "name": NAME, "command": ["agent", "--x"]}, b"orders\n"]
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a line\n", b"a complaint\n")
