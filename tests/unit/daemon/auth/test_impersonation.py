"""Acting as other users: whether our Python will do for that. The rest is in `tests/e2e/test_users.py`."""

from __future__ import annotations

import os
import pwd
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from cotenant.daemon.auth import impersonation
from cotenant.daemon.auth.impersonation import NOBODY, open_as


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")
def test_a_python_below_a_private_folder_is_for_root_only(tmp_path, monkeypatch):
    folder = tmp_path / "Private"  # in the message as it is written
    folder.mkdir(mode=0o700)
    python = folder / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setattr(impersonation.sys, "executable", str(python))
    closed = impersonation.closed_folder(str(python))
    assert impersonation.why_root_only() == f"`{python}`: permission denied, `{closed}` is closed to others"


def test_the_outermost_folder_that_is_closed_to_others_is_named():
    with tempfile.TemporaryDirectory() as name:  # pytest's own are closed themselves
        root = Path(name)
        root.chmod(0o755)
        if impersonation.closed_folder(str(root / "x")) is not None:
            pytest.skip("the folder of temporary files is closed to others")
        outer, inner, link = root / "a", root / "a" / "b", root / "python"
        inner.mkdir(parents=True)
        for folder in (outer, inner):
            folder.chmod(0o755)
        link.symlink_to(inner / "python")
        assert impersonation.closed_folder(str(link)) is None
        inner.chmod(0o750)
        assert impersonation.closed_folder(str(link)) == str(inner)
        outer.chmod(0o750)
        assert impersonation.closed_folder(str(link)) == str(outer)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")
@pytest.mark.parametrize(
    ("program", "why"),
    [
        pytest.param("/bin/true", None, id="one that they may run"),
        pytest.param("/bin/false", "`/bin/false`: 1", id="one that fails for them"),
        pytest.param("/no/such/python", "`/no/such/python`: no such file or directory", id="none"),
    ],
)
def test_a_python_that_fails_for_other_users_names_the_reason(monkeypatch, program, why):
    monkeypatch.setattr(impersonation.sys, "executable", program)
    assert impersonation.why_root_only() == why


def test_only_root_can_act_as_another_user(monkeypatch):
    monkeypatch.setattr(impersonation.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(impersonation.sys, "executable", "/no/such/python")
    assert impersonation.why_root_only() is None


def test_the_environment_of_another_user_holds_only_public_variables(monkeypatch):
    for name in ("SECRET_TOKEN", "LC_TIME", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "x")
    assert impersonation.environment_of(os.geteuid())["SECRET_TOKEN"] == "x"
    theirs = impersonation.environment_of(NOBODY)
    assert (theirs["LC_TIME"], theirs["LD_LIBRARY_PATH"], theirs["USER"]) == ("x", "x", pwd.getpwuid(NOBODY).pw_name)
    allowed = impersonation.PUBLIC_VARIABLES | {"HOME", "USER", "LOGNAME", "SHELL", "LC_TIME"}
    assert {name for name in theirs if not name.startswith("LC_")} <= allowed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")
def test_a_file_opened_as_a_user_is_closed_in_child_processes(tmp_path):
    path = tmp_path / "out"
    path.write_text("text")
    descriptor = open_as(0, str(path))
    try:
        assert not os.get_inheritable(descriptor)
        assert os.pread(descriptor, 9, 0) == b"text"
    finally:
        os.close(descriptor)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as others")
def test_a_process_without_free_descriptors_is_an_error_of_the_system(tmp_path, monkeypatch):
    path = tmp_path / "out"
    path.write_text("text")
    monkeypatch.setattr(socket, "CMSG_SPACE", lambda _: 0)  # the kernel drops the descriptor, as it does then
    with pytest.raises(OSError, match="Too many open files"):
        open_as(0, str(path))
