"""A full disk, of an agent or of the files that it shares with the daemon: attempts wait for room, and none fails."""

from __future__ import annotations

import errno
import io
import json
import os
import threading
from dataclasses import replace

import pytest

from builders import a_spec
from cotenant.core import codec
from cotenant.core.errors import BackendError, DiskFullError
from cotenant.core.placement import Placement
from cotenant.engines.output_budget import OutputBudget
from cotenant.hosts import agent as agent_module
from cotenant.hosts import engine as engine_module
from cotenant.hosts.agent import Agent
from cotenant.hosts.engine import HostsEngine
from cotenant.hosts.gpu_listing import HostGpus
from cotenant.simserver.server import SimulatedServer
from places import until

PLACEMENT = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="exclusive", promised_bytes=0)


class _Engine:
    """Launches nothing; notes what would have been launched or stopped."""

    def __init__(self, state_dir):
        self.error = None
        self.launched, self.stopped, self.tries = [], [], 0

    def start(self, on_event): ...

    def close(self): ...

    def launch(self, spec, attempt, placement, env):
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.launched.append((placement.job_id, attempt))

    def stop(self, ref, *, reason, grace_s, checkpoint):
        self.stopped.append((ref.job_id, ref.attempt, reason))


class _Running:
    """An agent in a thread."""

    def __init__(self, state_dir):
        reading, self._orders = os.pipe()
        self._said = io.BytesIO()
        budget = OutputBudget()
        self.agent = Agent(state_dir, os.fdopen(reading, "rb"), self._said, tick_s=0.001, budget=budget)
        self.engine = self.agent._engine
        self._thread = threading.Thread(target=self.agent.run)
        self._thread.start()

    def order(self, **order):
        os.write(self._orders, json.dumps(order).encode() + b"\n")

    def launch(self, job_id):
        spec, placement = codec.encode(a_spec()), codec.encode(replace(PLACEMENT, job_id=job_id))
        self.order(do="launch", spec=spec, placement=placement, attempt=1, env={})

    def ends(self):
        """Job and reason of the ends that were reported."""
        said = [json.loads(line) for line in self._said.getvalue().splitlines()]
        return [(end["ref"][0], end["result"]["reason"]) for end in said if end["say"] == "ended"]

    def close(self):
        os.close(self._orders)
        self._thread.join()


@pytest.fixture
def running(tmp_path, monkeypatch):
    SimulatedServer.create(tmp_path / "gpus", "1xA100-40GB", time_scale=1, seed=0)
    monkeypatch.setenv("COTENANT_SIM_SERVER", str(tmp_path / "gpus"))
    monkeypatch.setattr(agent_module, "LocalEngine", _Engine)
    monkeypatch.setattr(agent_module, "RETRY_S", 0.0)
    running = _Running(tmp_path)
    yield running
    running.close()


def test_an_attempt_without_room_starts_once_there_is_room(running, capsys):
    running.engine.error = DiskFullError("no room for a folder")
    running.launch(1)
    until(lambda: running.engine.tries > 2, "it is tried again")
    assert (running.engine.launched, running.ends()) == ([], [])
    running.engine.error = None
    until(lambda: running.engine.launched, "it starts")
    tries = running.engine.tries
    running.launch(2)
    until(lambda: len(running.engine.launched) == 2, "the next one starts")
    assert running.engine.launched == [(1, 1), (2, 1)]
    assert running.engine.tries == tries + 1
    assert capsys.readouterr().err.splitlines() == ["job 1 waits for room on the disk: no room for a folder"]


def test_one_that_is_stopped_while_it_waits_never_starts(running):
    running.engine.error = DiskFullError("no room for a folder")
    running.launch(1)
    until(lambda: running.engine.tries, "it is tried")
    running.order(do="stop", ref=[1, 1], reason="on request", grace_s=1.0, checkpoint=False)
    until(running.ends, "it ends")
    running.engine.error = None
    running.launch(2)
    until(lambda: running.engine.launched, "another one starts")
    assert running.ends() == [(1, "stopped")]
    assert (running.engine.launched, running.engine.stopped) == ([(2, 1)], [])


def test_one_that_cannot_start_for_another_reason_fails(running):
    running.engine.error = BackendError("no such user")
    running.launch(1)
    until(running.ends, "it ends")
    assert (running.ends(), running.engine.tries) == ([(1, "not-started")], 1)


def test_the_daemon_finds_no_room_on_the_shared_disk(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(HostGpus, "host_of", lambda *_: "n1")
    monkeypatch.setattr(engine_module.atomic, "write_bytes", refuse)
    with pytest.raises(DiskFullError, match="No space left"):
        HostsEngine(tmp_path, {}, tick_s=1.0).launch(a_spec(), 1, PLACEMENT, {})
