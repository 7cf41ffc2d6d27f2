"""Files that are complete or absent, whatever happens to their writer."""

from __future__ import annotations

import errno
import os
import stat
import threading

import pytest

from cotenant.osutil import atomic


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def narrow_umask():
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("narrow_umask")
@pytest.mark.parametrize("options", [{}, {"durable": True}, {"locked": True}, {"mode": 0o644}])
def test_content_and_mode_are_those_given_and_no_draft_is_left(tmp_path, options):
    atomic.write_text(tmp_path / "file", "old", **options)
    atomic.write_text(tmp_path / "file", "new ä", **options)
    assert (tmp_path / "file").read_text() == "new ä"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == options.get("mode", 0o600)
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("locked", [False, True])
def test_a_block_that_raises_leaves_the_file_as_it_was(tmp_path, locked):
    atomic.write_bytes(tmp_path / "file", b"old")

    def write_half():
        with atomic.replacing(tmp_path / "file", locked=locked) as file:
            file.write(b"half of")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_disk_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    atomic.write_bytes(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic.write_bytes(tmp_path / "file", b"new", durable=True)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_durable_syncs_the_content_before_the_rename_and_the_folder_after(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        really = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, name=name, really=really: calls.append(name) or really(*args))
    atomic.write_bytes(tmp_path / "file", b"x", durable=True)
    assert calls == ["fsync", "replace", "fsync"]


def test_a_symbolic_link_in_the_place_of_the_draft_is_not_followed(tmp_path):
    """As another user could leave one in a folder that all may write to."""
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".file.draft").symlink_to(tmp_path / "victim")
    atomic.write_text(tmp_path / "file", "new", locked=True)
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "file").read_text() == "new"


def test_a_draft_that_a_killed_process_left_is_no_obstacle(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic, "_numbers", iter(range(10)))
    (tmp_path / f".file.{os.getpid()}.0.draft").write_text("left behind")
    atomic.write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "new"


def test_of_several_creators_exactly_one_wins(tmp_path):
    path, won, gate = tmp_path / "claim", [], threading.Barrier(8)

    def create(number):
        gate.wait(60)
        if atomic.create_once(path, b"%d" % number):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() == b"%d" % won[0]
    assert len(won) == 1
    assert names(tmp_path) == ["claim"]


def test_a_file_system_that_cannot_sync_folders_is_no_error(tmp_path, monkeypatch):
    def refused(_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refused)
    atomic.sync_folder(tmp_path)
