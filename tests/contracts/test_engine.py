"""What every registered engine honors, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from builders import a_spec
from cotenant.core.errors import UnknownName
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef
from cotenant.engines import NAMES, create

TIMEOUT_S = 60
ENV = {"PATH": os.environ["PATH"]}
IGNORES_TERM = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")


def ref(job_id=1, attempt=1):
    return AttemptRef(job_id=job_id, attempt=attempt)


class Bench:
    """An engine, and everything that it has told."""

    def __init__(self, name, folder):
        self.engine = create(name, folder)
        self.told = []
        self.changed = threading.Condition()
        self.engine.start(self.hear)

    def hear(self, event):
        with self.changed:
            self.told.append(event)
            self.changed.notify_all()

    def launch(self, *command, job_id=1, attempt=1, env=None, **spec):
        spec = a_spec(**{"command": command, "uid": os.getuid(), "env": ENV, **spec})
        placement = Placement(
            job_id=job_id, gpu_uuids=("GPU-a", "GPU-b"), sharing="time-sliced", promised_bytes=3 * 2**30
        )
        self.engine.launch(spec, attempt, placement, env or {})

    def events(self, kind, job_id=1):
        return [each for each in self.told if isinstance(each, kind) and each.job_id == job_id]

    def wait(self, kind, job_id=1):
        with self.changed:
            assert self.changed.wait_for(lambda: self.events(kind, job_id), TIMEOUT_S), self.told
        return self.events(kind, job_id)[0]

    def output(self, job_id=1):
        return self.engine.log_paths(ref(job_id))[0]


def wait_until(holds):
    """For what only the files or processes of others can tell."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (found := holds()):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    return found


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(params=NAMES)
def bench(request, tmp_path):
    bench = Bench(request.param, tmp_path)
    yield bench
    for each in [each for each in bench.told if isinstance(each, AttemptStarted)]:
        bench.engine.stop(ref(each.job_id, each.attempt), reason="end of the test", grace_s=0)
        bench.wait(AttemptExited, each.job_id)
    bench.engine.close()


def test_unknown_name(tmp_path):
    with pytest.raises(UnknownName, match="no engine named `loacl`"):
        create("loacl", tmp_path)


@pytest.mark.parametrize(
    ("command", "code", "number"),
    [
        pytest.param(("true",), 0, None, id="success"),
        pytest.param(("sh", "-c", "exit 3"), 3, None, id="failure"),
        pytest.param(("sh", "-c", "kill -SEGV $$"), None, signal.SIGSEGV, id="signal"),
    ],
)
def test_exit(bench, command, code, number):
    bench.launch(*command)
    ended = bench.wait(AttemptExited)
    assert (ended.exit.exit_code, ended.exit.signal, ended.exit.reason) == (code, number, "exited")
    assert [type(each) for each in bench.told] == [AttemptStarted, AttemptExited]
    assert bench.told[0].at_s <= ended.at_s


@pytest.mark.parametrize(
    ("command", "spec", "detail"),
    [
        pytest.param(("no-such-thing",), {}, "no command named `no-such-thing`", id="not found"),
        pytest.param(("/no/such/file",), {}, "no such file: `/no/such/file`", id="no such file"),
        pytest.param(("/etc/passwd",), {}, "is not executable", id="not executable"),
        pytest.param(("true",), {"workdir": "/no/such/folder"}, "cannot enter the working directory", id="no folder"),
        pytest.param(("true",), {"stderr_path": "/no/such/folder/log"}, "cannot open", id="no log"),
    ],
)
def test_not_started(bench, command, spec, detail):
    bench.launch(*command, **spec)
    ended = bench.wait(AttemptExited)
    assert (ended.exit.reason, ended.exit.exit_code, ended.exit.signal) == ("not-started", None, None)
    assert detail in ended.exit.detail
    assert bench.told == [ended]


def test_script_without_interpreter(bench, tmp_path):
    script = tmp_path / "script"
    script.write_text("echo no first line\n")
    script.chmod(0o755)
    bench.launch(str(script))
    ended = bench.wait(AttemptExited)
    assert "has no `#!` line" in ended.exit.detail
    assert bench.told == [ended]


def test_second_launch_starts_nothing(bench, tmp_path):
    command = ("sh", "-c", f"echo once >>{tmp_path}/runs; read line <{tmp_path}/gate")
    os.mkfifo(tmp_path / "gate")
    bench.launch(*command)
    bench.wait(AttemptStarted)
    bench.launch(*command)
    (tmp_path / "gate").write_text("go\n")
    bench.wait(AttemptExited)
    bench.launch(*command)
    bench.launch("true", job_id=2)  # whatever the second launch did would be told before this
    bench.wait(AttemptExited, 2)
    assert (tmp_path / "runs").read_text() == "once\n"
    assert len(bench.events(AttemptExited)) == len(bench.events(AttemptStarted)) == 1


def test_environment(bench):
    bench.launch("env", env={"EXTRA": "daemon", "TWICE": "daemon"})
    bench.wait(AttemptExited)
    seen = dict(line.split("=", 1) for line in bench.output().read_text().splitlines())
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert seen["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert (seen["COTENANT_JOB_ID"], seen["COTENANT_ATTEMPT"]) == ("1", "1")
    assert seen["COTENANT_GPU_MEM_MIB"] == "3072"
    assert seen["EXTRA"] == "daemon"
    assert "HOME" not in seen  # the daemon's own environment stays with the daemon


def test_user_logs_are_appended_to(bench, tmp_path):
    log = tmp_path / "user.log"
    log.write_text("before\n")
    bench.launch("sh", "-c", "echo out; echo err >&2", stdout_path=str(log), stderr_path=str(log))
    bench.wait(AttemptExited)
    assert log.read_text() == "before\nout\nerr\n"


def test_own_logs_are_private(bench):
    bench.launch("echo", "hello")
    bench.wait(AttemptExited)
    out, err = bench.engine.log_paths(ref())
    assert (out.read_text(), err.read_text()) == ("hello\n", "")
    assert out.stat().st_mode & 0o077 == 0


def test_stop_is_polite_first(bench):
    bench.launch("sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    wait_until(lambda: bench.output().exists() and "ready" in bench.output().read_text())
    bench.engine.stop(ref(), reason="cancelled by ann", grace_s=TIMEOUT_S)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.exit_code, ended.detail) == ("stopped", 5, "cancelled by ann")
    assert "bye" in bench.output().read_text()


def test_stop_makes_sure(bench):
    bench.launch(*IGNORES_TERM)
    wait_until(lambda: bench.output().exists() and "ready" in bench.output().read_text())
    bench.engine.stop(ref(), reason="cancelled", grace_s=0.1)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.signal) == ("stopped", signal.SIGKILL)


def test_stop_reaches_grandchildren_in_other_sessions(bench, tmp_path):
    # A daemonized grandchild that ignores SIGTERM: own session, and its parent has ended.
    inner = f'trap "" TERM; echo $$ >{tmp_path}/pid; while :; do sleep 1; done'
    bench.launch("sh", "-c", f"(setsid sh -c '{inner}' &) ; while :; do sleep 1; done")
    pid = wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    assert bench.engine.owners([int(pid)]) == {int(pid): ref()}
    bench.engine.stop(ref(), reason="cancelled", grace_s=0.1)
    bench.wait(AttemptExited)
    assert not is_running(pid)


def test_what_a_job_leaves_running_ends_with_it(bench, tmp_path):
    bench.launch("sh", "-c", f"(setsid sleep 1000 & echo $! >{tmp_path}/pid); exit 4")
    assert bench.wait(AttemptExited).exit.exit_code == 4
    assert not is_running((tmp_path / "pid").read_text().strip())


def test_stop_of_unknown_and_ended_is_ignored(bench):
    bench.engine.stop(ref(77), reason="cancelled", grace_s=1)
    bench.launch("true")
    bench.wait(AttemptExited)
    bench.engine.stop(ref(), reason="cancelled", grace_s=1)
    assert bench.engine.find([ref()])[0].exited.exit.reason == "exited"


def test_stop_at_once_after_launch(bench):
    """Whether the runner has started the job, has claimed the attempt, or is not even Python yet."""
    for job_id in range(1, 9):
        bench.launch("sleep", "1000", job_id=job_id)
        if job_id % 2:
            threading.Event().wait(0.003 * job_id)
        bench.engine.stop(ref(job_id), reason="cancelled", grace_s=0.5)
    for job_id in range(1, 9):
        ended = bench.wait(AttemptExited, job_id).exit
        assert (ended.reason, ended.detail) == ("stopped", "cancelled")


def test_time_limit(bench):
    bench.launch("sleep", "1000", time_limit_s=0.1)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.signal) == ("timeout", signal.SIGTERM)
    assert "0.1 s" in ended.detail


def test_out_of_memory_is_told_with_evidence(bench, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "class OutOfMemoryError(RuntimeError): pass\n"
        "OutOfMemoryError.__module__ = 'torch'\n"
        "raise OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. this process has 3.00 GiB"
        " memory in use.')\n"
    )
    bench.launch(sys.executable, str(script))
    evidence = bench.wait(AttemptExited).exit.oom
    assert evidence.exception
    assert (evidence.tried_bytes, evidence.in_use_bytes) == (2 * 2**30, 3 * 2**30)


def test_words_of_an_earlier_attempt_in_the_same_log_are_no_evidence(bench, tmp_path):
    log = tmp_path / "log"
    log.write_text("Traceback (most recent call last):\n  x\ntorch.OutOfMemoryError: CUDA out of memory.\n")
    bench.launch("sh", "-c", "exit 1", stdout_path=str(log), stderr_path=str(log))
    evidence = bench.wait(AttemptExited).exit.oom
    assert not evidence.exception
    assert not evidence.message


def test_owners(bench):
    bench.launch("sh", "-c", "sleep 1000 & echo $!; wait")
    bench.launch("sleep", "1000", job_id=2)
    pid = int(wait_until(lambda: bench.output().exists() and bench.output().read_text().strip()))
    runner = bench.wait(AttemptStarted, 2).process.pid
    assert bench.engine.owners([pid, runner, os.getpid(), 1, 2**22 + 1]) == {pid: ref(), runner: ref(2)}


def test_many_at_once_end_once_each_and_leave_no_zombie(bench):
    for job_id in range(1, 21):
        bench.launch("true", job_id=job_id)
    for job_id in range(1, 21):
        bench.wait(AttemptExited, job_id)
    assert len(bench.told) == 40
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if children.exists():
        runners = {each.process.pid for each in bench.told if isinstance(each, AttemptStarted)}
        assert not runners & {int(pid) for pid in children.read_text().split()}


def test_listener_that_fails_does_not_end_the_watch(bench):
    def fail(event):
        bench.engine._on_event = bench.hear
        raise RuntimeError("a bug")

    bench.engine._on_event = fail
    bench.launch("true")
    assert bench.wait(AttemptExited).exit.exit_code == 0


# -- restarts


LAUNCHER = textwrap.dedent("""
    import sys, os, json, threading
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from builders import a_spec
    from cotenant.core.placement import Placement
    from cotenant.engines import create
    engine = create(sys.argv[2], Path(sys.argv[3]))
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
    for each in benches:
        each.engine.stop(ref(), reason="end of the test", grace_s=0)
        each.engine.close()


def test_adopts_what_outlived_the_daemon(killed_daemon, tmp_path):
    os.mkfifo(tmp_path / "gate")
    bench = killed_daemon("sh", "-c", f"read line <{tmp_path}/gate; exit 6")
    (found,) = bench.engine.find([ref()])
    assert found.started.process.pid > 0
    assert found.exited is None
    assert bench.engine.owners([found.started.process.pid]) == {found.started.process.pid: ref()}
    (tmp_path / "gate").write_text("go\n")
    assert bench.wait(AttemptExited).exit.exit_code == 6
    assert len(bench.told) == 1  # the start was told by `find`


def test_adopted_attempt_can_be_stopped(killed_daemon):
    bench = killed_daemon(*IGNORES_TERM)
    bench.engine.find([ref()])
    wait_until(lambda: bench.output().exists() and "ready" in bench.output().read_text())
    bench.engine.stop(ref(), reason="cancelled", grace_s=0.1)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.detail, ended.signal) == ("stopped", "cancelled", signal.SIGKILL)


def test_adopts_without_pidfd(killed_daemon, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr("cotenant.engines.local.POLL_S", 0.02)
    os.mkfifo(tmp_path / "gate")
    bench = killed_daemon("sh", "-c", f"read line <{tmp_path}/gate; exit 6")
    bench.engine.find([ref()])
    (tmp_path / "gate").write_text("go\n")
    assert bench.wait(AttemptExited).exit.exit_code == 6


def test_finds_what_ended_meanwhile(killed_daemon, tmp_path):
    os.mkfifo(tmp_path / "gate")
    bench = killed_daemon("sh", "-c", f"read line <{tmp_path}/gate; exit 6")
    (tmp_path / "gate").write_text("go\n")
    wait_until(lambda: list(tmp_path.rglob("result.json")))
    for _ in range(2):
        (found,) = bench.engine.find([ref()])
        assert found.started is not None
        assert (found.exited.exit.exit_code, found.exited.exit.reason) == (6, "exited")
    assert bench.told == []


def test_lost_when_the_runner_was_killed_too(killed_daemon, tmp_path):
    inner = f"echo $$ >{tmp_path}/pid; while :; do sleep 1; done"
    bench = killed_daemon("sh", "-c", f"setsid sh -c '{inner}' & wait")
    pid = wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    runner = json.loads(next(tmp_path.rglob("started.json")).read_text())["runner"]["pid"]
    os.kill(runner, signal.SIGKILL)
    wait_until(lambda: not is_running(runner))
    for _ in range(2):
        (found,) = bench.engine.find([ref()])
        assert found.exited.exit.reason == "lost"
        assert not is_running(pid)


def test_lost_when_the_runner_is_killed_while_watched(bench):
    bench.launch("sh", "-c", "echo $$; while :; do sleep 1; done")
    pid = wait_until(lambda: bench.output().exists() and bench.output().read_text().strip())
    os.kill(bench.wait(AttemptStarted).process.pid, signal.SIGKILL)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.exit_code) == ("lost", None)
    assert not is_running(pid)


def test_exit_of_a_watched_attempt_is_told_to_the_listener_only(bench, tmp_path):
    bench.launch("sleep", "1000")
    bench.wait(AttemptStarted)
    result = next(tmp_path.rglob("claim")).with_name("result.json")  # written a moment before the runner ends
    fields = {"reason": "exited", "exit_code": 0, "signal": None, "detail": "", "oom": {}, "ended_at_s": 1.0}
    result.write_text(json.dumps(fields))
    assert bench.engine.find([ref()])[0].exited is None
    result.unlink()


def test_stop_of_a_runner_that_does_not_answer(bench, monkeypatch):
    monkeypatch.setattr("cotenant.engines.local.RUNNER_LATE_S", 0.1)
    bench.launch("sleep", "1000")
    runner = bench.wait(AttemptStarted).process.pid
    os.kill(runner, signal.SIGSTOP)
    bench.engine.stop(ref(), reason="cancelled", grace_s=0.1)
    ended = bench.wait(AttemptExited).exit
    assert (ended.reason, ended.detail) == ("stopped", "cancelled")
    assert not is_running(runner)


def test_never_started_never_will(bench):
    (found,) = bench.engine.find([ref(9)])
    assert (found.started, found.exited) == (None, None)
    bench.launch("true", job_id=9)
    bench.launch("true", job_id=10)
    bench.wait(AttemptExited, 10)
    assert bench.events(AttemptStarted, 9) == []
    assert bench.engine.find([ref(9)])[0] == found


def test_a_runner_that_comes_late_finds_the_attempt_void(bench, tmp_path):
    """The daemon died between starting the runner and its claim; the next daemon looked first."""
    folder = tmp_path / "attempts/3/1"
    folder.mkdir(parents=True)
    spec = {"argv": ["touch", str(tmp_path / "ran")], "cwd": "/", "env": ENV, "grace_s": 1}
    spec |= {"stdout": str(folder / "out"), "stderr": str(folder / "err")}
    (folder / "spec.json").write_text(json.dumps(spec))
    assert bench.engine.find([ref(3)])[0].started is None
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
def test_strangers_with_our_pid_are_not_ours(bench, tmp_path, change):
    """The runner's number belongs to somebody else now: its attempt is lost, and the somebody is left alone."""
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        ticks = int(Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")[2].split()[19])
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        process = {"pid": stranger.pid, "start_ticks": ticks, "boot_id": boot_id, **change}
        folder = tmp_path / "attempts/4/1"
        folder.mkdir(parents=True)
        (folder / "claim").write_text(json.dumps({"by": "runner", "process": process}))
        started = {"runner": process, "job": process, "session": stranger.pid, "started_at_s": 5.0}
        (folder / "started.json").write_text(json.dumps(started))
        (found,) = bench.engine.find([ref(4)])
        assert found.exited.exit.reason == "lost"
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_close_leaves_attempts_alone(tmp_path):
    for name in NAMES:
        bench = Bench(name, tmp_path / name)
        bench.launch("sleep", "1000")
        pid = bench.wait(AttemptStarted).process.pid
        bench.engine.close()
        assert is_running(pid)
        again = Bench(name, tmp_path / name)
        assert again.engine.find([ref()])[0].exited is None
        again.engine.stop(ref(), reason="end", grace_s=0)
        again.wait(AttemptExited)
        again.engine.close()
