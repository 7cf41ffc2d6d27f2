"""Processes by an identity that a reused pid cannot fake."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace

import pytest

from cotenant.osutil import procfs


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_identity(child):
    own = procfs.identity(child.pid)
    assert procfs.is_alive(own)
    assert not procfs.is_alive(replace(own, start_ticks=own.start_ticks + 1))
    assert not procfs.is_alive(replace(own, boot_id="another"))
    assert procfs.identity(2**22 + 1) is None


def test_zombie_is_not_alive(child):
    own = procfs.identity(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.read_stat(child.pid).state == "Z"
    assert not procfs.is_alive(own)
    assert procfs.open_pidfd(own) is None


@pytest.mark.parametrize("with_pidfd", [True, False])
def test_signal_reaches_only_the_very_process(child, monkeypatch, with_pidfd):
    if not with_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    own = procfs.identity(child.pid)
    assert not procfs.send_signal(replace(own, start_ticks=1), signal.SIGKILL)
    assert child.poll() is None
    assert procfs.send_signal(own, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert not procfs.send_signal(own, signal.SIGKILL)


def test_a_process_that_ends_with_its_name_in_parentheses_is_read_right(tmp_path):
    program = tmp_path / "a) Z 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "1000"]) as process:
        stat = procfs.read_stat(process.pid)
        process.kill()
    assert (stat.parent, stat.session) == (os.getpid(), os.getsid(0))
    assert stat.state in "RSD"


def test_ancestors_end_at_init(child):
    found = [stat.pid for stat in procfs.ancestors(child.pid)]
    assert found[:2] == [child.pid, os.getpid()]
    assert len(found) == len(set(found))


def test_the_session_of_a_process_is_itself_and_no_stranger(child):
    assert procfs.session_pids(child.pid) == {child.pid}
    assert procfs.session_pids(10**9) == {10**9}
