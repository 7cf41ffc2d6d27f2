"""What is left of an attempt is killed, and nothing else."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cotenant.engines import leftovers
from cotenant.engines.leftovers import kill_leftovers
from cotenant.osutil import procfs
from cotenant.osutil.env_tags import has_env_tag, kill_tagged


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "1000"], env={"MARK": "yes", "OTHER": "x"}, start_new_session=True)
    # Popen has seen the end of its own program, which comes before the environment of the new one.
    while has_env_tag(process.pid, {"MARK": "yes"}) is None:
        os.sched_yield()
    yield process
    process.kill()
    process.wait()


def test_tagged_processes_are_killed_in_whatever_session_they_are(child):
    kill_tagged({"MARK": "no"})
    assert child.poll() is None
    kill_tagged({"MARK": "yes", "OTHER": "x"})
    assert child.wait() == -signal.SIGKILL


def test_processes_with_the_tag_are_killed(child):
    assert kill_leftovers((), {"MARK": "no"}, timeout_s=60) == 0
    assert child.poll() is None
    assert kill_leftovers((), {"MARK": "yes"}, timeout_s=60) == 0
    assert child.wait() == -signal.SIGKILL


class InsideExecve:
    """A copy of /proc in which `pid` is in execve(2) until somebody waits; then it is as it really is."""

    def __init__(self, folder, pid):
        self.folder = folder / str(pid)
        self.folder.mkdir()
        head, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        self.real = f"{head}){fields}", Path(f"/proc/{pid}/environ").read_bytes()
        (self.folder / "status").write_text(Path(f"/proc/{pid}/status").read_text())
        words = fields.split()
        words[48] = "0"
        self.write(f"{head}) {' '.join(words)}", b"")
        self.waits = 0

    def write(self, stat, environment):
        (self.folder / "stat").write_text(stat)
        (self.folder / "environ").write_bytes(environment)

    def sleep(self, _):
        self.waits += 1
        if self.waits == 1:
            self.write(*self.real)
        else:
            shutil.rmtree(self.folder)


def test_a_process_inside_execve_is_waited_for(child, tmp_path, monkeypatch):
    inside = InsideExecve(tmp_path, child.pid)
    monkeypatch.setattr(procfs, "PROC", str(tmp_path))
    monkeypatch.setattr(leftovers.time, "sleep", inside.sleep)
    assert has_env_tag(child.pid, {"MARK": "no"}) is None
    assert kill_leftovers((), {"MARK": "no"}, timeout_s=60) == 0
    assert inside.waits == 1
    assert child.poll() is None


def test_a_process_that_has_the_tag_after_execve_is_killed(child, tmp_path, monkeypatch):
    inside = InsideExecve(tmp_path, child.pid)
    monkeypatch.setattr(procfs, "PROC", str(tmp_path))
    monkeypatch.setattr(leftovers.time, "sleep", inside.sleep)
    assert kill_leftovers((), {"MARK": "yes"}, timeout_s=60) == 0
    assert inside.waits == 2
    assert child.wait() == -signal.SIGKILL


def test_a_process_that_stays_inside_execve_is_waited_for_a_second(child, tmp_path, monkeypatch):
    InsideExecve(tmp_path, child.pid)
    clock = iter(range(1000))
    monkeypatch.setattr(procfs, "PROC", str(tmp_path))
    monkeypatch.setattr(leftovers.time, "monotonic", lambda: next(clock) / 10)
    monkeypatch.setattr(leftovers.time, "sleep", lambda _: None)
    assert kill_leftovers((), {"MARK": "yes"}, timeout_s=5) == 0
    assert 10 <= next(clock) <= 12, "a second"
    assert child.poll() is None


def test_a_process_without_environment_has_no_tag():
    with subprocess.Popen(["env", "-i", "sleep", "1000"]) as bare:
        while Path(f"/proc/{bare.pid}/cmdline").read_bytes() != b"sleep\x001000\0":
            os.sched_yield()
        while (found := has_env_tag(bare.pid, {"MARK": "yes"})) is None:
            os.sched_yield()
        bare.kill()
    assert found is False
    assert not procfs.read_stat(2) or not procfs.read_stat(2).is_execing, "a thread of the kernel"


def test_the_session_of_a_known_process_is_killed():
    """The second process has no tag, but lives in the session of the first."""
    script = "env -i sleep 1000 & echo $!; wait"
    leader = subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True)
    other = int(leader.stdout.readline())
    assert kill_leftovers([procfs.identity(leader.pid)], {"MARK": "none"}, timeout_s=60) == 0
    leader.communicate()
    found = procfs.read_stat(other)
    assert found is None or found.state == "Z"


@pytest.mark.parametrize("mark", ["none", "yes"], ids=["known", "tagged"])
def test_a_process_that_is_made_while_its_session_is_killed_is_killed(tmp_path, monkeypatch, mark):
    """A copy of /proc lacks it at first, and has its leader as a zombie then, which nobody has waited for."""
    script = "env -i sleep 1000 & echo $!; wait"
    leader = subprocess.Popen(
        ["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True, env={"MARK": "yes"}
    )
    late = int(leader.stdout.readline())
    known = [procfs.identity(leader.pid)] if mark == "none" else []
    copies = {pid: InsideExecve(tmp_path, pid) for pid in (leader.pid, late)}
    copies[leader.pid].write(*copies[leader.pid].real)
    hidden = tmp_path / "hidden"
    copies[late].folder.rename(hidden)

    def sleep(_):
        stat, environment = copies[leader.pid].real
        head, _, fields = stat.rpartition(")")
        copies[leader.pid].write(f"{head}) Z{fields[2:]}", environment)
        if hidden.exists():
            hidden.rename(copies[late].folder)
            copies[late].write(*copies[late].real)
        elif (procfs.read_stat(late) is None) or Path(f"/proc/{late}/stat").read_text().rpartition(")")[2][1] == "Z":
            shutil.rmtree(copies[late].folder, ignore_errors=True)

    monkeypatch.setattr(procfs, "PROC", str(tmp_path))
    monkeypatch.setattr(leftovers.time, "sleep", sleep)
    assert kill_leftovers(known, {"MARK": mark}, timeout_s=60) == 0
    monkeypatch.undo()
    found = procfs.read_stat(late)
    with contextlib.suppress(ProcessLookupError):
        os.kill(late, signal.SIGKILL)  # or its output stays open
    leader.kill()
    leader.communicate()
    assert found is None or found.state == "Z"


def test_every_variable_of_the_tag_must_match_in_full(child):
    assert has_env_tag(child.pid, {"MARK": "yes", "OTHER": "x"})
    assert not has_env_tag(child.pid, {"MARK": "ye"})
    assert not has_env_tag(child.pid, {"MARK": "yes", "OTHER": "y"})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start a process of another user")
def test_processes_of_other_users_are_spared_whatever_they_share():
    """Both are in a session of ours, as `sudo` leaves it; the other user's process has the tag."""
    script = "sleep 1000 & echo $!; exec setpriv --reuid 65534 --clear-groups env MARK=yes sleep 1000"
    with subprocess.Popen(["sh", "-c", script], start_new_session=True, stdout=subprocess.PIPE, text=True) as tagged:
        ours = int(tagged.stdout.readline())
        while not has_env_tag(tagged.pid, {"MARK": "yes"}):
            os.sched_yield()
        assert kill_leftovers((), {"MARK": "yes"}, timeout_s=60) == 0
        assert tagged.poll() is None
        assert kill_leftovers((), {"MARK": "yes"}, uid=65534, timeout_s=60) == 0
        assert tagged.wait() == -signal.SIGKILL
        assert procfs.read_stat(ours).state != "Z", "it shares the session, but is not the user's"
        os.kill(ours, signal.SIGKILL)


@pytest.mark.parametrize(
    ("number", "started", "reason"),
    [(errno.ENOSPC, False, "never-ran"), (errno.EIO, False, "not-started"), (errno.ENOSPC, True, "lost")],
)
def test_an_attempt_that_a_full_disk_kept_from_starting_never_ran(number, started, reason):
    end = leftovers.exit_without_runner("", started=started, left=0)
    assert leftovers.as_never_ran(end, OSError(number, "no")).reason == reason
