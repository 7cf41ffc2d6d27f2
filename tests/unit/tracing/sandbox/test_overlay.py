"""What a traced script writes, moves and removes happens in the scratch folder, and the script sees it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cotenant.tracing.sandbox import overlay as module
from cotenant.tracing.sandbox import overlay_hooks
from cotenant.tracing.sandbox.overlay import Overlay, make_scratch


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The script's working folder, with a file and a folder in it."""
    real = tmp_path / "real"
    (real / "data").mkdir(parents=True)
    (real / "old.txt").write_text("before")
    (real / "data" / "part").write_text("part")
    monkeypatch.chdir(real)
    return real


@pytest.fixture
def overlay(folder, tmp_path):
    make_scratch(tmp_path / "scratch")
    return Overlay(str(tmp_path / "scratch"))


def content(overlay, path):
    return Path(overlay.visible(path)).read_text()


def refused_with(code):
    return pytest.raises(OSError, match=os.strerror(code))


def test_an_unchanged_file_is_read_where_it_is(overlay, folder):
    assert overlay.visible("old.txt") == str(folder / "old.txt")


def test_a_changed_file_is_copied_first_and_the_original_stays(overlay, folder):
    with Path(overlay.for_writing("old.txt", fresh=False)).open("a") as file:
        file.write(" and after")
    assert content(overlay, "old.txt") == "before and after"
    assert (folder / "old.txt").read_text() == "before"


@pytest.mark.parametrize(
    ("path", "is_absent"),
    [
        pytest.param("gone/new.txt", True, id="below a folder that is missing, too"),
        pytest.param("old.txt", False, id="there"),
        pytest.param("data", False, id="a folder"),
        pytest.param("", False, id="no path"),
        pytest.param("/dev/gone", False, id="not redirected"),
    ],
)
def test_what_is_missing_may_be_made(overlay, folder, path, is_absent):
    full = overlay.absent(path)
    assert full == (str(folder / path) if is_absent else None)
    if full is not None:
        overlay.new_file(full).write_text("made")
        assert content(overlay, path) == "made"
        assert overlay.absent(path) is None
        assert not (folder / "gone").exists()


def test_a_removed_file_may_be_made(overlay, folder):
    overlay.remove(str(folder / "old.txt"))
    assert overlay.absent("old.txt") == str(folder / "old.txt")


def test_nothing_is_made_where_changes_are_real(folder, tmp_path):
    make_scratch(tmp_path / "scratch")
    assert Overlay(str(tmp_path / "scratch"), captures_all=False).absent("gone.txt") is None


def test_a_file_opened_afresh_is_not_copied(overlay, folder):
    with Path(overlay.for_writing("old.txt", fresh=True)).open("a") as file:
        file.write("new")
    assert content(overlay, "old.txt") == "new"


def test_a_removed_file_is_gone_for_the_script_only(overlay, folder):
    overlay.remove(str(folder / "old.txt"))
    assert not overlay.exists(str(folder / "old.txt"))
    assert overlay.names(str(folder)) == ["data"]
    assert not Path(overlay.visible("old.txt")).exists()
    assert (folder / "old.txt").exists()


@pytest.mark.parametrize("given", [".", "data", b"data"])
def test_entries_of_a_folder_are_named_as_those_of_the_system(overlay, folder, given):
    scandir = overlay_hooks._reading_functions(overlay)["scandir"]
    described = [[(entry.name, entry.path, entry.is_dir()) for entry in scan(given)] for scan in (scandir, os.scandir)]
    decoded = sorted((os.fsdecode(name), os.fsdecode(path), is_dir) for name, path, is_dir in described[1])
    assert described[0] == decoded


def test_a_removed_file_can_be_made_again_without_its_content(overlay, folder):
    overlay.remove(str(folder / "old.txt"))
    with Path(overlay.for_writing("old.txt", fresh=False)).open("a") as file:
        file.write("x")
    assert content(overlay, "old.txt") == "x"


def test_a_moved_folder_takes_its_files_along(overlay, folder):
    overlay.move(str(folder / "data"), str(folder / "moved"))
    assert overlay.names(str(folder)) == ["moved", "old.txt"]
    assert content(overlay, "moved/part") == "part"
    assert (folder / "data" / "part").exists()


@pytest.fixture
def latest(folder):
    """A link to the newest run, as training scripts leave one behind."""
    (folder / "latest").symlink_to("data")
    return str(folder / "latest")


def test_a_link_to_a_folder_is_removed_as_a_file_is(overlay, folder, latest):
    """`os.unlink("latest")` failed: it was taken for the folder."""
    overlay.remove(latest)
    assert not overlay.exists(latest)
    assert (folder / "latest").is_symlink(), "for the script only"
    assert content(overlay, "data/part") == "part"


def test_a_link_is_replaced_by_another_one(overlay, folder, latest):
    overlay.make_folder(str(folder / "run"))
    overlay.write("run/part", b"new")
    draft = str(folder / "draft")
    Path(overlay.upper_path(draft)).symlink_to(overlay.visible("run"))
    overlay.move(draft, latest)
    assert not overlay.exists(draft)
    assert Path(overlay.visible(latest)).is_symlink()
    assert (Path(overlay.visible(latest)) / "part").read_text() == "new"
    overlay.move(latest, str(folder / "moved"))
    assert not overlay.exists(latest)
    assert content(overlay, "data/part") == "part", "the folder of the first link"


def test_a_file_that_is_moved_onto_itself_stays(overlay, folder):
    overlay.move(str(folder / "old.txt"), str(folder / "old.txt"))
    assert content(overlay, "old.txt") == "before"


def test_truncate_leaves_no_descriptor_open(overlay, folder):
    truncate = overlay_hooks._changing_functions(overlay)["truncate"]
    before = len(list(Path("/proc/self/fd").iterdir()))
    truncate("old.txt", 3)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_folder_with_files_is_not_removed(overlay, folder):
    with refused_with(errno.ENOTEMPTY):
        overlay.remove_folder(str(folder / "data"))


@pytest.mark.parametrize(
    ("act", "code"),
    [
        pytest.param(lambda o, f: o.remove(f + "/none"), errno.ENOENT, id="remove what is not there"),
        pytest.param(lambda o, f: o.remove(f + "/data"), errno.EISDIR, id="remove a folder as a file"),
        pytest.param(lambda o, f: o.move(f + "/data", f + "/data/in"), errno.EINVAL, id="move a folder into itself"),
        pytest.param(lambda o, f: o.move(f + "/old.txt", f + "/data"), errno.EISDIR, id="move a file onto a folder"),
        pytest.param(lambda o, f: o.make_folder(f + "/data"), errno.EEXIST, id="make a folder again"),
        pytest.param(lambda o, f: o.make_folder(f + "/none/x"), errno.ENOENT, id="make a folder below no folder"),
        pytest.param(lambda o, f: o.for_writing(f + "/old.txt/x", fresh=True), errno.ENOENT, id="write below a file"),
        pytest.param(lambda o, f: o.for_writing(f + "/data", fresh=True), errno.EISDIR, id="write to a folder"),
        pytest.param(lambda o, f: o.change_folder(f + "/none"), errno.ENOENT, id="change to no folder"),
    ],
)
def test_errors_are_those_of_the_file_system(overlay, folder, act, code):
    with refused_with(code):
        act(overlay, str(folder))


def test_devices_caches_and_the_scratch_folder_are_not_redirected(overlay, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    free = Overlay(str(tmp_path / "scratch"))
    paths = ("/dev/null", "/proc/self/status", f"{tmp_path}/hub/model", f"{tmp_path}/scratch/files/x")
    assert [free.path_of(path) for path in paths] == [None] * len(paths)
    assert free.path_of(f"{tmp_path}/hub2") == f"{tmp_path}/hub2"


def test_a_large_file_is_not_copied_to_be_changed(overlay, folder, monkeypatch):
    monkeypatch.setattr(module, "MAX_COPIED_BYTES", 3)
    with pytest.raises(OSError, match="too large to be copied"):
        overlay.for_writing("old.txt", fresh=False)


def test_without_capture_only_files_of_the_overlay_are_redirected(folder, tmp_path):
    overlay = Overlay(str(tmp_path / "scratch"), captures_all=False)
    overlay.write("model.pt", b"fake")
    assert overlay.for_writing("old.txt", fresh=False) == "old.txt"
    assert overlay.names(str(folder)) == ["data", "model.pt", "old.txt"]
    assert not (folder / "model.pt").exists()


def test_raw_files_are_written_in_the_scratch_folder(overlay, folder):
    raw_file = overlay_hooks._raw_file(overlay_hooks._open_functions(overlay)["os.open"])
    Path(overlay.above(str(folder / "out"))).mkdir(parents=True)
    for path in ("out/new.pt", "old.txt"):
        with raw_file(path, mode="wb") as file:
            file.write(b"after")
        with raw_file(path) as file:
            assert file.read() == b"after"
    assert (folder / "old.txt").read_text() == "before"
    assert not (folder / "out").exists()
    with (folder / "old.txt").open("rb", buffering=0) as file:
        assert isinstance(file, raw_file)
    with refused_with(errno.ENOENT):
        raw_file("gone.txt")


def test_an_empty_path_is_no_folder(overlay):
    assert overlay.path_of("") is None
    assert overlay.visible("") == ""


def test_a_folder_that_a_script_writes_to_is_made_and_named(overlay, folder):
    for path in ("logs/old/train.log", "logs/old/test.log", "data/new"):
        Path(overlay.for_writing(path, fresh=True)).write_text("x")
    overlay.write(f"{folder.parent}/saved/model.pt", b"x")
    assert content(overlay, "logs/old/train.log") == content(overlay, f"{folder.parent}/saved/model.pt") == "x"
    assert (folder / "logs").exists() is False
    assert [sentence.partition(",")[0] for sentence in overlay.warnings()] == [
        "the folder `logs/old` does not exist",
        f"the folder `{folder.parent}/saved` does not exist",
    ]


def test_without_capture_no_folder_is_made_for_a_script(folder, tmp_path):
    overlay = Overlay(str(tmp_path / "scratch"), captures_all=False)
    with refused_with(errno.ENOENT):
        overlay.write("logs/model.pt", b"x")
    assert overlay.warnings() == []


def test_a_folder_is_made_below_one_that_is_missing(overlay, folder, monkeypatch):
    monkeypatch.setattr(os, "mkdir", overlay_hooks._changing_functions(overlay)["mkdir"])
    Path("weights/of/320").mkdir()
    assert overlay.names(str(folder / "weights/of")) == ["320"]
    Path("more/inside").mkdir(parents=True)
    assert overlay.exists(str(folder / "more/inside"))
    assert [sentence.partition(",")[0] for sentence in overlay.warnings()] == ["the folder `weights/of` does not exist"]
    assert not (folder / "weights").exists()
    assert not (folder / "more").exists()


def test_of_many_folders_that_a_script_writes_to_three_are_named(overlay):
    for number in range(1200):
        overlay.write(f"parts/{number}/x.txt", b"x")
    *named, rest = overlay.warnings()
    assert (len(named), rest) == (3, "1,197 more folders do not exist that the script writes to")
