"""The fork server and its reusable runners: replaced when they die, and outliving the daemon."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading

import pytest

from cotenant.engines import forkserver
from cotenant.engines.forkserver import MAX_IDLE, RunnerForkServer
from cotenant.engines.runner_spec import RUNNER_DIR
from cotenant.osutil import procfs

TIMEOUT_S = 60


class Bench:
    """Attempts in a folder, started by one fork server."""

    def __init__(self, folder):
        self.folder = folder
        self.forkserver = RunnerForkServer(RUNNER_DIR)
        os.mkfifo(folder / "gate")

    def start(self, name, *argv):
        """The runner of this attempt."""
        folder = self.folder / name
        folder.mkdir()
        logs = {"stdout": str(folder / "stdout.log"), "stderr": str(folder / "stderr.log")}
        spec = {"argv": argv, "cwd": "/", "env": {"PATH": os.environ["PATH"]}, **logs, "grace_s": 1.0}
        (folder / "spec.json").write_text(json.dumps(spec))
        return self.forkserver.start_runner(folder)

    def start_gated(self, name):
        """The runner of an attempt that exits with 7 once the gate opens."""
        runner = self.start(name, "sh", "-c", f"read line <{self.folder}/gate; exit 7")
        assert self.receive(runner) == b"started\n"
        return runner

    def open_gate(self):
        (self.folder / "gate").write_text("go\n")

    def receive(self, runner):
        assert select.select([runner.channel], [], [], TIMEOUT_S)[0]
        return runner.receive()

    def result(self, name, runner):
        """How it ended, once the runner has reported it."""
        assert self.receive(runner) == b"started\n", (self.folder / name / "runner.log").read_text()
        assert self.receive(runner) == b"ended"
        return self.saved_result(name)

    def saved_result(self, name):
        return json.loads((self.folder / name / "result.json").read_text())

    def claimed_by(self, name):
        return json.loads((self.folder / name / "claim").read_text())["process"]["pid"]


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.forkserver.close()


def gone(runner):
    """Whether the process ends."""
    descriptor = procfs.open_pidfd(runner.process)
    if descriptor is None:
        return True
    found = select.select([descriptor], [], [], TIMEOUT_S)[0]
    os.close(descriptor)
    return bool(found)


def test_the_reply_identifies_the_runner_which_leads_its_own_session(bench):
    runner = bench.start_gated("a")
    assert procfs.identity(runner.process.pid) == runner.process
    assert procfs.read_stat(runner.process.pid).session == runner.process.pid
    assert bench.claimed_by("a") == runner.process.pid
    bench.open_gate()
    assert bench.receive(runner) == b"ended"
    assert bench.saved_result("a")["exit_code"] == 7


def test_twenty_runners_at_once(bench):
    started = [bench.start(f"{i}", "sh", "-c", f"exit {i}") for i in range(20)]
    assert len({runner.process.pid for runner in started}) == 20
    assert [bench.result(f"{i}", runner)["exit_code"] for i, runner in enumerate(started)] == list(range(20))


def test_runners_can_be_started_from_many_threads(bench):
    found = {}

    def start(i):
        found[i] = bench.start(f"{i}", "true")

    threads = [threading.Thread(target=start, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {bench.result(f"{i}", runner)["exit_code"] for i, runner in found.items()} == {0}


def test_a_released_runner_runs_the_next_attempt(bench):
    runner = bench.start("a", "sh", "-c", "exit 3")
    assert bench.result("a", runner)["exit_code"] == 3
    bench.forkserver.release(runner)
    assert bench.start("b", "sh", "-c", "exit 4") is runner
    result = bench.result("b", runner)
    assert (result["exit_code"], bench.claimed_by("b")) == (4, runner.process.pid)


def test_resource_usage_is_counted_per_attempt(bench):
    burn = "import time\nblock = b'x' * 2**28\nwhile time.process_time() < 0.5: pass"
    runner = bench.start("a", sys.executable, "-c", burn)
    first = bench.result("a", runner)
    bench.forkserver.release(runner)
    second = bench.result("b", bench.start("b", "true"))
    assert first["user_s"] + first["system_s"] >= 0.5 > second["user_s"] + second["system_s"]
    assert first["max_rss_bytes"] > 2**28 > second["max_rss_bytes"]


def test_a_late_stop_does_not_reach_the_next_attempt(bench):
    runner = bench.start("a", "true")
    bench.result("a", runner)
    procfs.send_signal(runner.process, signal.SIGTERM)
    bench.forkserver.release(runner)
    assert bench.start_gated("b") is runner
    bench.open_gate()
    assert bench.receive(runner) == b"ended"
    assert bench.saved_result("b")["reason"] == "exited"


def test_an_idle_runner_that_died_is_replaced(bench):
    runner = bench.start("a", "true")
    bench.result("a", runner)
    procfs.send_signal(runner.process, signal.SIGKILL)
    assert gone(runner)
    bench.forkserver.release(runner)
    other = bench.start("b", "true")
    assert other is not runner
    assert bench.result("b", other)["exit_code"] == 0


def test_idle_runners_are_limited_to_max_idle(bench):
    started = [bench.start(f"{i}", "true") for i in range(MAX_IDLE + 1)]
    for i, runner in enumerate(started):
        bench.result(f"{i}", runner)
        bench.forkserver.release(runner)
    assert gone(started[-1])
    assert procfs.is_alive(started[0].process)


def test_all_idle_runners_but_one_are_ended_after_a_while(bench, monkeypatch):
    started = [bench.start(f"{i}", "true") for i in range(3)]
    for i, runner in enumerate(started):
        bench.result(f"{i}", runner)
        bench.forkserver.release(runner)
    assert 0 < bench.forkserver.trim_idle() <= forkserver.IDLE_TIMEOUT_S
    monkeypatch.setattr(forkserver, "IDLE_TIMEOUT_S", 0.0)
    assert bench.forkserver.trim_idle() is None
    assert [gone(runner) for runner in started[:2]] == [True, True]
    assert bench.start("next", "true") is started[2]
    assert bench.forkserver.trim_idle() is None


def test_a_job_does_not_inherit_the_channel(bench):
    """It would keep the engine from seeing that its runner was killed."""
    runner = bench.start_gated("a")
    procfs.send_signal(runner.process, signal.SIGKILL)
    assert bench.receive(runner) == b""
    bench.open_gate()


def test_a_fork_server_that_died_is_replaced_and_its_runners_go_on(bench):
    runner = bench.start_gated("a")
    bench.forkserver._process.kill()
    bench.forkserver._process.wait()
    assert bench.result("b", bench.start("b", "true"))["exit_code"] == 0
    bench.open_gate()
    assert bench.receive(runner) == b"ended"
    assert bench.saved_result("a")["exit_code"] == 7


def test_close_ends_the_fork_server_and_idle_runners_but_no_running_attempt(bench):
    runner = bench.start_gated("a")
    idle = bench.start("b", "true")
    bench.result("b", idle)
    bench.forkserver.release(idle)
    process = bench.forkserver._process
    bench.forkserver.close()
    assert process.returncode == 0
    assert gone(idle)
    runner.channel.close()  # as the kernel does when the daemon ends
    bench.open_gate()
    assert gone(runner)
    assert bench.saved_result("a")["exit_code"] == 7


def test_an_interpreter_that_cannot_be_started_is_an_error(bench, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(OSError, match="No such file"):
        bench.start("a", "true")
