"""A measured process answers, holds until it is let go, and leaves nothing behind."""

from __future__ import annotations

import os
import sys
import time

import pytest

from cotenant.core.errors import CotenantError
from cotenant.engines.held_process import HOLD_FD, HeldProcess, HeldProcessResult
from running import is_running

ANSWER = f"""
import os, pathlib, sys
path = pathlib.Path(sys.argv[1])
path.with_suffix(".part").write_text('{{"outcome": "ok"}}')
path.with_suffix(".part").rename(path)
os.read(int(os.environ["{HOLD_FD}"]), 1)
print("let go", flush=True)
sys.exit(7)
"""
WITH_CHILD = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
path = pathlib.Path(sys.argv[2])
path.with_suffix(".part").write_text(str(child.pid))
path.with_suffix(".part").rename(path)
time.sleep(600)
"""


def start(tmp_path, text, *args):
    return HeldProcess(
        [sys.executable, "-c", text, str(tmp_path / "answer"), *args],
        workdir=str(tmp_path),
        env=dict(os.environ),
        log=tmp_path / "log",
        answer=tmp_path / "answer",
    )


def wait_until(condition):
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_held_process_waits_until_released(tmp_path):
    run = start(tmp_path, ANSWER)
    assert run.wait(60)
    assert run.process.poll() is None
    assert (tmp_path / "log").read_text() == ""
    ended = run.release()
    assert (ended.answer, ended.code, ended.log_tail) == ({"outcome": "ok"}, 7, "let go\n")
    assert run.process.pid in ended.pids


def test_a_process_that_dies_is_ready_without_an_answer(tmp_path):
    run = start(tmp_path, "raise SystemExit('no')")
    assert run.wait(60)
    ended = run.release()
    assert (ended.answer, ended.code, ended.log_tail) == (None, 1, "no\n")


def test_all_that_it_started_ends_with_it(tmp_path):
    run = start(tmp_path, WITH_CHILD, str(tmp_path / "pid"))
    wait_until((tmp_path / "pid").exists)
    child = int((tmp_path / "pid").read_text())
    assert is_running(child)
    assert not run.wait(0)
    ended = run.release()
    assert (ended.answer, ended.code) == (None, None)
    assert child in ended.pids
    wait_until(lambda: not is_running(child))


def test_an_old_answer_does_not_count(tmp_path):
    (tmp_path / "answer").write_text("{}")
    run = start(tmp_path, "raise SystemExit(0)")
    assert run.wait(60)
    assert run.release().answer is None


def test_a_missing_interpreter_is_an_error(tmp_path):
    with pytest.raises(CotenantError, match="cannot start `/no/python`"):
        HeldProcess(["/no/python"], workdir=str(tmp_path), env={}, log=tmp_path / "log", answer=tmp_path / "answer")


@pytest.mark.parametrize(
    ("code", "log", "in_time", "message"),
    [
        pytest.param(3, "one\n two \n\n", True, "exit code 3; last line: two", id="exit code"),
        pytest.param(-9, "", True, "signal 9; last line: none", id="signal, empty log"),
        pytest.param(None, "one", True, "exited; last line: one", id="exit unseen"),
        pytest.param(None, "one", False, "not done after 1m30s", id="time limit"),
    ],
)
def test_a_failure_names_the_exit_and_the_last_line_or_the_time_limit(code, log, in_time, message):
    ended = HeldProcessResult(answer=None, pids=set(), code=code, elapsed_s=1.0, log_tail=log)

    assert ended.failure(in_time=in_time, limit_s=90.0) == message
