"""What every engine knows of attempts after the daemon or a runner has gone, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.engines import ENGINES
from engine_bench import ENV, IGNORES_TERM, NAMES, TIMEOUT_S, Bench, opened, ref, wait_until
from running import is_running


@pytest.fixture(params=NAMES)
def bench(request, tmp_path):
    with opened(request.param, tmp_path) as bench:
        yield bench


LAUNCHER = textwrap.dedent("""
    import sys, os, json, threading
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from builders import a_spec
    from cotenant.core.placement import Placement
    from engine_bench import engine_of
    engine = engine_of(sys.argv[2], Path(sys.argv[3]))
    engine.start(lambda event: print(type(event).__name__, flush=True))
    command = tuple(json.loads(sys.argv[4]))
    spec = a_spec(command=command, uid=os.getuid(), env={"PATH": os.environ["PATH"]})
    placement = Placement(job_id=1, gpu_uuids=("GPU-a",), sharing="time-sliced", promised_bytes=0)
    engine.launch(spec, 1, placement, {})
    threading.Event().wait()
""")


@pytest.fixture(params=NAMES)
def killed_daemon(request, tmp_path):
    """Launches a command from a process that is then killed; gives a new engine on the same state."""
    benches = []

    def launch_and_die(*command):
        argv = [sys.executable, "-c", LAUNCHER, str(Path(__file__).parent.parent), request.param]
        daemon = subprocess.Popen([*argv, str(tmp_path), json.dumps(command)], stdout=subprocess.PIPE, text=True)
        assert daemon.stdout.readline() == "AttemptStarted\n"
        daemon.kill()
        daemon.communicate()
        benches.append(Bench(request.param, tmp_path))
        return benches[0]

    yield launch_and_die
    for bench in benches:
        bench.engine.stop(ref(), reason="end of the test", grace_s=0)
        bench.engine.close()


def test_recovers_an_attempt_that_outlived_the_daemon(killed_daemon, tmp_path):
    os.mkfifo(tmp_path / "gate")
    bench = killed_daemon("sh", "-c", f"read line <{tmp_path}/gate; exit 6")
    (found,) = bench.engine.recover([ref()])
    assert found.started.process.pid > 0
    assert found.exited is None
    (tmp_path / "gate").write_text("go\n")
    assert bench.wait(AttemptExited).exit.exit_code == 6
    assert len(bench.reported) == 1  # the start was told by `find`


def test_a_recovered_attempt_can_be_stopped(killed_daemon):
    bench = killed_daemon(*IGNORES_TERM)
    bench.engine.recover([ref()])
    wait_until(lambda: bench.output().exists() and "ready" in bench.output().read_text())
    bench.engine.stop(ref(), reason="cancelled", grace_s=0.1)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.detail, ended.signal) == ("stopped", "cancelled", signal.SIGKILL)


@pytest.mark.parametrize("killed_daemon", ENGINES.names(), indirect=True)  # an agent is another process
def test_recovers_without_pidfds(killed_daemon, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr("cotenant.engines.local.POLL_S", 0.02)
    os.mkfifo(tmp_path / "gate")
    bench = killed_daemon("sh", "-c", f"read line <{tmp_path}/gate; exit 6")
    (found,) = bench.engine.recover([ref()])
    assert bench.engine.owners([found.started.process.pid]) == {found.started.process.pid: ref()}
    (tmp_path / "gate").write_text("go\n")
    assert bench.wait(AttemptExited).exit.exit_code == 6


def test_recovers_the_exit_of_an_attempt_that_ended_meanwhile(killed_daemon, tmp_path):
    os.mkfifo(tmp_path / "gate")
    bench = killed_daemon("sh", "-c", f"read line <{tmp_path}/gate; exit 6")
    (tmp_path / "gate").write_text("go\n")
    wait_until(lambda: list(tmp_path.rglob("result.json")))
    for _ in range(2):
        (found,) = bench.engine.recover([ref()])
        assert found.started is not None
        assert (found.exited.exit.exit_code, found.exited.exit.reason) == (6, "exited")
    assert bench.reported == []


def test_an_attempt_is_lost_if_its_runner_was_killed_too(killed_daemon, tmp_path):
    inner = f"echo $$ >{tmp_path}/pid; while :; do sleep 1; done"
    bench = killed_daemon("sh", "-c", f"setsid sh -c '{inner}' & wait")
    pid = wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    runner = json.loads(next(tmp_path.rglob("started.json")).read_text())["runner"]["pid"]
    os.kill(runner, signal.SIGKILL)
    wait_until(lambda: not is_running(runner))
    for _ in range(2):
        assert bench.end().exit.reason == "lost"
        assert not is_running(pid)


def test_a_watched_attempt_is_lost_if_its_runner_is_killed(bench):
    bench.launch("sh", "-c", "echo $$; while :; do sleep 1; done")
    pid = wait_until(lambda: bench.output().exists() and bench.output().read_text().strip())
    os.kill(bench.wait(AttemptStarted).process.pid, signal.SIGKILL)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.exit_code) == ("lost", None)
    assert not is_running(pid)


def test_the_exit_of_a_watched_attempt_goes_to_the_listener_only(bench, tmp_path):
    bench.launch("sleep", "1000")
    bench.wait(AttemptStarted)
    result = next(tmp_path.rglob("claim")).with_name("result.json")  # written a moment before the runner ends
    fields = {"reason": "exited", "exit_code": 0, "signal": None, "detail": "", "oom": {}, "ended_at_s": 1.0}
    result.write_text(json.dumps(fields))
    assert bench.engine.recover([ref()])[0].exited is None
    result.unlink()


@pytest.mark.parametrize("bench", ENGINES.names(), indirect=True)  # an agent is another process
def test_a_runner_that_does_not_stop_is_killed(bench, monkeypatch):
    monkeypatch.setattr("cotenant.engines.local.RUNNER_REPLY_TIMEOUT_S", 0.1)
    bench.launch("sleep", "1000")
    runner = bench.wait(AttemptStarted).process.pid
    os.kill(runner, signal.SIGSTOP)
    bench.engine.stop(ref(), reason="cancelled", grace_s=0.1)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.detail) == ("stopped", "cancelled")
    assert not is_running(runner)


def test_an_attempt_that_never_started_never_will(bench):
    (found,) = bench.engine.recover([ref(9)])
    assert (found.started, found.exited) == (None, None)
    bench.launch("true", job_id=9)
    bench.launch("true", job_id=10)
    bench.wait(AttemptExited, 10)
    assert bench.events(AttemptStarted, 9) == []
    assert bench.engine.recover([ref(9)])[0] == found


def test_a_runner_that_comes_late_finds_the_attempt_void(bench, tmp_path):
    """The daemon died between starting the runner and its claim; the next daemon looked first."""
    folder = tmp_path / "attempts/3/1"
    folder.mkdir(parents=True)
    spec = {"argv": ["touch", str(tmp_path / "ran")], "cwd": "/", "env": ENV, "grace_s": 1}
    spec |= {"stdout": str(folder / "out"), "stderr": str(folder / "err")}
    (folder / "spec.json").write_text(json.dumps(spec))
    assert bench.engine.recover([ref(3)])[0].started is None
    runner = Path(sys.modules["cotenant.engines"].__file__).parents[1] / "runner"
    subprocess.run([sys.executable, "-I", "-S", str(runner), str(folder)], check=True, timeout=TIMEOUT_S)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"boot_id": "an earlier boot"}, id="another boot"),
        pytest.param({"start_ticks": 1}, id="the pid was used again"),
    ],
)
def test_a_reused_pid_is_not_taken_for_the_runner(bench, tmp_path, change):
    """The runner's number belongs to somebody else now: its attempt is lost, and the somebody is left alone."""
    unrelated = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        ticks = int(Path(f"/proc/{unrelated.pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        process = {"pid": unrelated.pid, "start_ticks": ticks, "boot_id": boot_id, **change}
        folder = tmp_path / "attempts/4/1"
        folder.mkdir(parents=True)
        (folder / "claim").write_text(json.dumps({"by": "runner", "process": process}))
        started = {"runner": process, "job": process, "session": unrelated.pid, "started_at_s": 5.0}
        (folder / "started.json").write_text(json.dumps(started))
        (folder.parent / "1.host").write_text("here")
        assert bench.end(4).exit.reason == "lost"
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


def test_close_leaves_attempts_alone(tmp_path):
    for name in NAMES:
        bench = Bench(name, tmp_path / name)
        bench.launch("sleep", "1000")
        pid = bench.wait(AttemptStarted).process.pid
        bench.engine.close()
        assert is_running(pid)
        again = Bench(name, tmp_path / name)
        assert again.engine.recover([ref()])[0].exited is None
        again.engine.stop(ref(), reason="end", grace_s=0)
        again.wait(AttemptExited)
        again.engine.close()
