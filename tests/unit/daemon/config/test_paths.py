"""Paths, sockets and logs."""

from __future__ import annotations

import io
import logging
import os
import socket
import stat
from pathlib import Path

import pytest

from cotenant.core.errors import DaemonRunning, NotPermitted, UsageError
from cotenant.daemon.auth.unix_socket import ListeningSocket, peer_of
from cotenant.daemon.config import paths
from cotenant.daemon.log import LineFormatter, warnings_of


@pytest.mark.parametrize(
    ("env", "path"),
    [
        pytest.param({"COTENANT_SOCKET": "/a/b", "XDG_RUNTIME_DIR": "/run/user/7"}, "/a/b", id="named"),
        pytest.param({"XDG_RUNTIME_DIR": "/run/user/7"}, "/run/user/7/cotenant/sock", id="XDG"),
        pytest.param({}, f"/tmp/cotenant-{os.getuid()}/sock", id="without XDG"),
        pytest.param({"XDG_RUNTIME_DIR": ""}, f"/tmp/cotenant-{os.getuid()}/sock", id="empty XDG"),
    ],
)
def test_the_socket_path_follows_the_environment(env, path, monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", tmp_path / "none")
    assert paths.socket_path(env) == Path(path)
    assert paths.serving_path("own", env) == Path(path)


def test_the_system_daemon_is_used_without_a_daemon_of_the_user(monkeypatch, tmp_path):
    env = {"XDG_RUNTIME_DIR": str(tmp_path / "run")}
    own = tmp_path / "run" / "cotenant" / "sock"
    system = tmp_path / "system"
    monkeypatch.setattr(paths, "SYSTEM_SOCKET", system)
    system.touch()
    assert paths.socket_path(env) == system
    assert paths.serving_path("own", env) == own  # a daemon of one's own never takes the machine's place
    assert paths.serving_path("all", env) == system
    own.parent.mkdir(parents=True)
    own.touch()
    assert paths.socket_path(env) == own
    assert paths.serving_path("all", {"COTENANT_SOCKET": "/x"}) == Path("/x")


def test_the_shared_socket_is_open_and_its_folder_is_not_writable(tmp_path):
    listening = ListeningSocket(tmp_path / "s" / "sock", for_all=True)
    assert listening.path.stat().st_mode & 0o777 == 0o666
    assert listening.path.parent.stat().st_mode & 0o777 == 0o755
    listening.close()


@pytest.mark.parametrize(
    ("env", "path"),
    [
        pytest.param({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/cotenant", id="XDG"),
        pytest.param({"HOME": "/h"}, "/h/.local/state/cotenant", id="home"),
        pytest.param({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/cotenant", id="relative ignored"),
    ],
)
def test_the_state_folder_follows_the_environment(env, path):
    assert paths.state_dir(env) == Path(path)


def test_a_private_folder_is_created_for_its_owner_only(tmp_path):
    made = paths.private_folder(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o777)
    assert paths.private_folder(made).stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_private_folder_of_another_user_is_refused(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 4242, 4242)
    with pytest.raises(NotPermitted, match="belongs to uid 4242"):
        paths.private_folder(other)


def test_a_link_of_the_users_own_leads_to_a_private_folder(tmp_path):
    (tmp_path / "disk").mkdir(mode=0o755)
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    paths.private_folder(tmp_path / "link")
    assert stat.S_IMODE((tmp_path / "disk").stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a link away")
def test_a_link_of_another_user_to_a_folder_of_ours_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    os.chown(tmp_path / "link", 4242, 4242, follow_symlinks=False)
    with pytest.raises(NotPermitted, match="belongs to uid 4242"):
        paths.private_folder(tmp_path / "link")


def test_a_link_that_leads_nowhere_is_named_with_where_it_leads(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(NotPermitted, match=r"`.*/link` is a link to `.*/gone`, where no folder is"):
        paths.private_folder(tmp_path / "link")


def test_a_socket_serves_one_daemon_and_the_kernel_names_the_peer(tmp_path):
    first = ListeningSocket(tmp_path / "s" / "sock")
    with pytest.raises(DaemonRunning, match="already listens"):
        ListeningSocket(tmp_path / "s" / "sock")
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(first.path))
        connection, _ = first.socket.accept()
        with connection:
            peer = peer_of(connection)
    assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
    first.close()
    assert not first.path.exists()
    ListeningSocket(tmp_path / "s" / "sock").close()


def test_a_socket_path_too_long_for_the_kernel_is_refused(tmp_path):
    with pytest.raises(UsageError, match="longer than 107 bytes"):
        ListeningSocket(tmp_path / ("x" * 108))


def test_log_lines_quote_what_would_break_them():
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(LineFormatter())
    record = logging.LogRecord("x", logging.INFO, __file__, 1, "job %s", ("seen",), None)
    record.fields = {"job": 3, "name": 'a b="c"\n', "empty": ""}
    handler.emit(record)
    line = out.getvalue()
    assert line.count("\n") == 1
    assert line.endswith('Z info job seen job=3 name="a b=\\"c\\"\\n" empty=""\n')


def test_warnings_are_found_in_a_log():
    lines = (
        "T info a warning b",
        "T warning one why=x",
        "Traceback (most recent call last):",
        "  warning",
        "T error two",
    )
    assert warnings_of("\n".join(lines)) == ["one why=x", "two"]


def test_a_daemon_that_cannot_start_leaves_the_folder_of_the_other_one_open(tmp_path):
    """It made the folder private first, and locked the users of a daemon of all users out."""
    first = ListeningSocket(tmp_path / "s" / "sock", for_all=True)
    with pytest.raises(DaemonRunning):
        ListeningSocket(tmp_path / "s" / "sock")
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o755
    first.close()
    ListeningSocket(tmp_path / "s" / "sock").close()
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700


def test_a_folder_that_all_users_share_is_refused_and_stays_theirs(tmp_path):
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    for take in (paths.private_folder, paths.own_folder):
        with pytest.raises(NotPermitted, match="all users share"):
            take(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_the_configuration_of_the_machine_has_a_folder_of_its_own(tmp_path):
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert [*map(str, paths.config_files(home))] == ["/etc/cotenant/config.toml", f"{tmp_path}/cotenant/config.toml"]
    named = paths.config_files({**home, "COTENANT_SYSTEM_CONFIG": str(tmp_path / "etc")})
    assert named == (tmp_path / "etc" / "config.toml", tmp_path / "cotenant" / "config.toml")


def test_these_tests_read_no_configuration_of_the_machine():
    assert not paths.config_files()[0].parent.exists()
