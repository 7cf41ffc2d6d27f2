"""The process that forks runners: it is replaced when it dies, and its runners outlive it."""

from __future__ import annotations

import json
import os
import select
import sys
import threading

import pytest

from cotenant.engines import processes
from cotenant.engines.launching import RUNNER_PATH
from cotenant.engines.zygote import Zygote

TIMEOUT_S = 60


class Bench:
    """Attempts in a folder, started by one zygote."""

    def __init__(self, folder):
        self.folder = folder
        self.zygote = Zygote(RUNNER_PATH)

    def start(self, name, *argv):
        """The runner's identity and the reading end of its notify pipe."""
        folder = self.folder / name
        folder.mkdir()
        logs = {"stdout": str(folder / "stdout.log"), "stderr": str(folder / "stderr.log")}
        spec = {"argv": argv, "cwd": "/", "env": {"PATH": os.environ["PATH"]}, **logs, "grace_s": 1.0}
        (folder / "spec.json").write_text(json.dumps(spec))
        read_end, write_end = os.pipe()
        with (folder / "runner.log").open("wb") as log:
            runner = self.zygote.start_runner(folder, write_end, log.fileno())
        os.close(write_end)
        return runner, read_end

    def result(self, name, read_end):
        """How it ended, once its pipe is closed."""
        told = b""
        while select.select([read_end], [], [], TIMEOUT_S)[0] and (piece := os.read(read_end, 4096)):
            told += piece
        os.close(read_end)
        assert told == b"started\n", (self.folder / name / "runner.log").read_text()
        return json.loads((self.folder / name / "result.json").read_text())


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.zygote.close()


def test_runners_are_who_it_says_and_lead_a_session_of_their_own(bench):
    os.mkfifo(bench.folder / "gate")
    runner, pipe = bench.start("a", "sh", "-c", f"read line <{bench.folder}/gate; exit 7")
    assert os.read(pipe, 8) == b"started\n"
    assert processes.identity(runner.pid) == runner
    assert processes.read_stat(runner.pid).session == runner.pid
    claim = json.loads((bench.folder / "a" / "claim").read_text())
    assert claim["process"]["pid"] == runner.pid
    (bench.folder / "gate").write_text("go\n")
    assert os.read(pipe, 8) == b""
    os.close(pipe)
    assert json.loads((bench.folder / "a" / "result.json").read_text())["exit_code"] == 7


def test_many_at_once(bench):
    started = [bench.start(f"{i}", "sh", "-c", f"exit {i}") for i in range(20)]
    assert len({runner.pid for runner, _ in started}) == 20
    assert [bench.result(f"{i}", pipe)["exit_code"] for i, (_, pipe) in enumerate(started)] == list(range(20))


def test_asked_from_many_threads(bench):
    found = {}

    def ask(i):
        found[i] = bench.start(f"{i}", "true")

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert {bench.result(f"{i}", pipe)["exit_code"] for i, (_, pipe) in found.items()} == {0}


def test_one_that_died_is_replaced_and_its_runners_go_on(bench):
    os.mkfifo(bench.folder / "gate")
    _, pipe = bench.start("a", "sh", "-c", f"read line <{bench.folder}/gate; exit 7")
    bench.zygote._process.kill()
    bench.zygote._process.wait()
    _, other = bench.start("b", "true")
    assert bench.result("b", other)["exit_code"] == 0
    (bench.folder / "gate").write_text("go\n")
    assert bench.result("a", pipe)["exit_code"] == 7


def test_it_ends_with_the_daemon_and_leaves_the_runners(bench):
    os.mkfifo(bench.folder / "gate")
    _, pipe = bench.start("a", "sh", "-c", f"read line <{bench.folder}/gate; exit 7")
    process = bench.zygote._process
    bench.zygote.close()
    assert process.returncode == 0
    (bench.folder / "gate").write_text("go\n")
    assert bench.result("a", pipe)["exit_code"] == 7


def test_one_that_cannot_be_started_is_an_error(bench, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(OSError, match="No such file"):
        bench.start("a", "true")
