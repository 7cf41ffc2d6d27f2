"""Warnings at submission about files that a job could not write."""

from __future__ import annotations

import os

import pytest

from cotenant.cli import output_files
from cotenant.cli.main import main

MISSING = "there is no folder `{0}/missing` for its output"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "50%j").mkdir()
    (tmp_path / "file").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("out", None),
        ("there/out-%j", None),
        ("file", None),
        ("missing/out", MISSING),
        ("missing/%j", MISSING),
        ("missing/%x/out", MISSING),
        ("missing/more/out", "there is no folder `{0}/missing/more` for its output"),
        ("there", "its output `{0}/there` is a folder"),
        ("there/%x/out", None),
        ("50%%j/out", None),
        ("50%%a/out", "there is no folder `{0}/50%a` for its output"),
        ("file/out", "there is no folder `{0}/file` for its output"),
    ],
)
def test_a_warning_names_why_an_output_file_cannot_be_written(folder, capsys, path, said):
    output_files.warn([None, f"{folder}/{path}"])
    streams = capsys.readouterr()
    assert streams.out == ""
    if said is None:
        assert streams.err == ""
    else:
        start = f"warning: {said.format(folder)}"
        assert streams.err == f"{start}: the job will fail when it starts, unless that has changed by then\n"


@pytest.mark.parametrize(
    ("path", "said"),
    [("locked/out", "its output may not be written to `{0}/locked`"), ("mine", "its output `{0}/mine` may not be")],
)
def test_output_files_without_write_permission_are_reported(folder, capsys, monkeypatch, path, said):
    (folder / "locked").mkdir()
    (folder / "mine").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    output_files.warn([f"{folder}/{path}"])
    assert said.format(folder) in capsys.readouterr().err


def test_an_output_path_that_cannot_be_checked_is_reported(folder, capsys):
    output_files.warn([f"{folder}/{'x' * 300}/out"])
    assert "cannot be reached (file name too long)" in capsys.readouterr().err


@pytest.mark.parametrize(("variables", "warnings"), [({}, 1), ({"COTENANT_HOST": "gpu1"}, 0)])
def test_submit_warns_once_and_only_if_the_daemon_is_here(folder, capsys, monkeypatch, variables, warnings):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COTENANT_SOCKET", str(folder / "sock"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["submit", "-o", "missing/out", "true"]) != 0, "there is no daemon, and no token"
    assert capsys.readouterr().err.count("no folder") == warnings
