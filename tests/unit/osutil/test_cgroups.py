"""The own cgroup from /proc; killing and removing one, where this process may make one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.osutil import cgroups

MOUNT = "31 24 0:27 {root} {point} rw,relatime shared:9 - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("mounts", "membership", "folder"),
    [
        pytest.param(
            MOUNT.format(root="/", point="/sys/fs/cgroup"),
            "0::/system.slice/c.service\n",
            "/sys/fs/cgroup/system.slice/c.service",
            id="systemd",
        ),
        pytest.param(
            "30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
            + MOUNT.format(root="/", point="/sys/fs/cgroup/unified"),
            "4:cpu:/x\n0::/\n",
            "/sys/fs/cgroup/unified",
            id="both versions",
        ),
        pytest.param(
            MOUNT.format(root="/docker/1", point="/sys/fs/cgroup"),
            "0::/docker/1/c\n",
            "/sys/fs/cgroup/c",
            id="container",
        ),
        pytest.param(MOUNT.format(root="/docker/1", point="/x"), "0::/docker/12\n", None, id="mount of another cgroup"),
        pytest.param("30 24 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "4:cpu:/\n", None, id="version 1"),
        pytest.param("", "", None, id="none"),
    ],
)
def test_own_folder(tmp_path, monkeypatch, mounts, membership, folder):
    for name, text in (("MOUNTS", mounts), ("MEMBERSHIP", membership)):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(cgroups, name, tmp_path / name)
    assert cgroups.own_folder() == (None if folder is None else Path(folder))


@pytest.fixture
def cgroup():
    folder = cgroups.create(f"cotenant-test-{os.getpid()}")
    if folder is None:
        pytest.skip("this process may not make a cgroup, or the kernel has no cgroup.kill")
    yield folder
    cgroups.remove(folder)
    assert not folder.exists()


def test_a_cgroup_s_processes_are_killed_with_what_they_started(cgroup):
    code = "import os, time; input(); os.setsid(); os.fork(); print(flush=True); time.sleep(1000)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", code], bufsize=0, **pipes)
    (cgroup / "cgroup.procs").write_text(str(process.pid))
    process.stdin.write(b"\n")
    process.stdout.readline()
    cgroups.kill(cgroup)
    assert process.wait() == -signal.SIGKILL
    assert process.stdout.read() in (b"", b"\n")  # its end: nobody has the pipe open any more
    process.stdout.close()
    process.stdin.close()


def test_a_cgroup_that_exists_is_emptied(cgroup):
    process = subprocess.Popen(["sleep", "1000"])
    (cgroup / "cgroup.procs").write_text(str(process.pid))
    assert cgroups.create(cgroup.name) == cgroup
    assert process.wait() == -signal.SIGKILL


def test_without_cgroup_v2_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(cgroups, "own_folder", lambda: tmp_path / "absent")
    assert cgroups.create("x") is None
