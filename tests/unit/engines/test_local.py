"""What the local engine refuses, and how it tells processes apart."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from builders import a_spec
from cotenant.core.errors import BackendError
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef
from cotenant.engines import processes
from cotenant.engines.attempt_dir import AttemptDir
from cotenant.engines.local import LocalEngine

PLACEMENT = Placement(job_id=1, gpu_uuids=("GPU-a",), sharing="exclusive", promised_bytes=0)


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "1000"], env={"MARK": "yes", "OTHER": "x"}, start_new_session=True)
    # Popen has seen the end of its own program, which comes before the environment of the new one.
    while processes.has_env_tag(process.pid, {"MARK": "yes"}) is None:
        os.sched_yield()
    yield process
    process.kill()
    process.wait()


def test_another_user_needs_root(tmp_path, monkeypatch):
    engine = LocalEngine(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(BackendError, match=r"cannot run a job of user `ann` \(uid 1000\) as uid 1234"):
        engine.launch(a_spec(uid=1000), 1, PLACEMENT, {})
    engine.close()


def test_state_that_cannot_be_kept(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError, match="cannot create"):
        LocalEngine(tmp_path / "file")


def test_failed_launch_leaves_nothing_behind(tmp_path, monkeypatch):
    engine = LocalEngine(tmp_path)
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(BackendError, match="cannot start a runner for job 1"):
        engine.launch(a_spec(uid=os.getuid()), 1, PLACEMENT, {})
    assert list((tmp_path / "attempts").rglob("*.json")) == []
    assert not AttemptDir(tmp_path / "attempts", AttemptRef(job_id=1, attempt=1)).path.exists()
    engine.close()


def test_a_stop_reaches_the_attempt_that_the_runner_is_at_and_no_other(tmp_path, monkeypatch):
    signals, really = [], processes.send_signal
    monkeypatch.setattr(processes, "send_signal", lambda *args: signals.append(args) or really(*args))
    told = queue.SimpleQueue()
    engine = LocalEngine(tmp_path)
    engine.start(told.put)

    def launch(job_id, *command):
        spec = a_spec(command=command, uid=os.getuid(), env={"PATH": os.environ["PATH"]})
        engine.launch(spec, 1, replace(PLACEMENT, job_id=job_id), {})

    def next_told(kind):
        event = told.get(timeout=60)
        assert isinstance(event, kind)
        return event

    launch(1, "true")
    first = next_told(AttemptStarted)
    assert next_told(AttemptExited).exit.exit_code == 0
    launch(2, "sleep", "1000")
    assert next_told(AttemptStarted).process == first.process, "the runner is used again"
    (tmp_path / "attempts/1/1/result.json").unlink()  # as if it had not been there when the stop looked
    engine.stop(AttemptRef(job_id=1, attempt=1), reason="late", grace_s=0)
    assert signals == []
    engine.stop(AttemptRef(job_id=2, attempt=1), reason="in time", grace_s=10)
    assert next_told(AttemptExited).exit.detail == "in time"
    engine.close()


def test_identity(child):
    own = processes.identity(child.pid)
    assert processes.is_alive(own)
    assert not processes.is_alive(replace(own, start_ticks=own.start_ticks + 1))
    assert not processes.is_alive(replace(own, boot_id="another"))
    assert processes.identity(2**22 + 1) is None


def test_zombie_is_not_alive(child):
    own = processes.identity(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.read_stat(child.pid).state == "Z"
    assert not processes.is_alive(own)
    assert processes.open_pidfd(own) is None


@pytest.mark.parametrize("with_pidfd", [True, False])
def test_signal_reaches_only_the_very_process(child, monkeypatch, with_pidfd):
    if not with_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    own = processes.identity(child.pid)
    assert not processes.send_signal(replace(own, start_ticks=1), signal.SIGKILL)
    assert child.poll() is None
    assert processes.send_signal(own, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not processes.send_signal(own, signal.SIGKILL)


def test_kill_remains_by_mark(child):
    assert processes.kill_leftovers((), {"MARK": "no"}, timeout_s=5) == 0
    assert child.poll() is None
    assert processes.kill_leftovers((), {"MARK": "yes"}, timeout_s=5) == 0
    assert child.wait() == -signal.SIGKILL


class Between:
    """A copy of /proc in which `pid` is in execve(2) until somebody waits; then it is as it really is."""

    def __init__(self, folder, pid):
        self.folder = folder / str(pid)
        self.folder.mkdir()
        head, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        self.real = f"{head}){fields}", Path(f"/proc/{pid}/environ").read_bytes()
        between = fields.split()
        between[48] = "0"
        self.tell(f"{head}) {' '.join(between)}", b"")
        self.waits = 0

    def tell(self, stat, environment):
        (self.folder / "stat").write_text(stat)
        (self.folder / "environ").write_bytes(environment)

    def sleep(self, _):
        self.waits += 1
        if self.waits == 1:
            self.tell(*self.real)
        else:
            shutil.rmtree(self.folder)


def test_kill_remains_waits_for_what_becomes_another_program(child, tmp_path, monkeypatch):
    between = Between(tmp_path, child.pid)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(processes.time, "sleep", between.sleep)
    assert processes.has_env_tag(child.pid, {"MARK": "no"}) is None
    assert processes.kill_leftovers((), {"MARK": "no"}, timeout_s=5) == 0
    assert between.waits == 1
    assert child.poll() is None


def test_kill_remains_ends_what_became_another_program(child, tmp_path, monkeypatch):
    between = Between(tmp_path, child.pid)
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(processes.time, "sleep", between.sleep)
    assert processes.kill_leftovers((), {"MARK": "yes"}, timeout_s=5) == 0
    assert between.waits == 2
    assert child.wait() == -signal.SIGKILL


def test_kill_remains_does_not_wait_for_ever_for_what_stays_so(child, tmp_path, monkeypatch):
    Between(tmp_path, child.pid)
    clock = iter(range(1000))
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(processes.time, "monotonic", lambda: next(clock) / 10)
    monkeypatch.setattr(processes.time, "sleep", lambda _: None)
    assert processes.kill_leftovers((), {"MARK": "yes"}, timeout_s=5) == 0
    assert 10 <= next(clock) <= 12, "a second"
    assert child.poll() is None


def test_what_has_no_environment_has_no_mark():
    with subprocess.Popen(["env", "-i", "sleep", "1000"]) as bare:
        while Path(f"/proc/{bare.pid}/cmdline").read_bytes() != b"sleep\x001000\0":
            os.sched_yield()
        while (found := processes.has_env_tag(bare.pid, {"MARK": "yes"})) is None:
            os.sched_yield()
        bare.kill()
    assert found is False
    assert not processes.read_stat(2) or not processes.read_stat(2).is_execing, "a thread of the kernel"


def test_kill_remains_takes_the_session_of_a_known_process():
    """The second process carries no mark, but lives in the session of the first."""
    script = "env -i sleep 1000 & echo $!; wait"
    leader = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True)
    other = int(leader.stdout.readline())
    assert processes.kill_leftovers([processes.identity(leader.pid)], {"MARK": "none"}, timeout_s=5) == 0
    leader.communicate()
    found = processes.read_stat(other)
    assert found is None or found.state == "Z"


def test_mark_must_match_in_full(child):
    assert processes.has_env_tag(child.pid, {"MARK": "yes", "OTHER": "x"})
    assert not processes.has_env_tag(child.pid, {"MARK": "ye"})
    assert not processes.has_env_tag(child.pid, {"MARK": "yes", "OTHER": "y"})


def test_files_of_nobody_are_no_attempt(tmp_path):
    folder = AttemptDir(tmp_path, AttemptRef(job_id=1, attempt=1))
    folder.path.mkdir(parents=True)
    (folder.path / "started.json").write_text("[]")
    for torn in ("{ half", "", "{}", '{"reason": "exited"}', "\0" * 100, "[]"):
        (folder.path / "result.json").write_text(torn)
        assert folder.exited("test") is None, torn
    assert folder.started("test") is None
    assert folder.runner() is None
    assert folder.tombstone()
    assert folder.tombstone()
    assert [each.name for each in Path(folder.path).iterdir() if each.name.startswith(".claim")] == []
