"""What is said at submission of files that a job could not write."""

from __future__ import annotations

import os

import pytest

from cotenant.cli import job_builder, output_files

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
def test_what_is_said(folder, capsys, path, said):
    output_files.warn([None, f"{folder}/{path}"])
    told = capsys.readouterr()
    assert told.out == ""
    if said is None:
        assert told.err == ""
    else:
        start = f"warning: {said.format(folder)}"
        assert told.err == f"{start}: the job will fail when it starts, unless that has changed by then\n"


@pytest.mark.parametrize(
    ("path", "said"),
    [("locked/out", "its output may not be written to `{0}/locked`"), ("mine", "its output `{0}/mine` may not be")],
)
def test_what_may_not_be_written(folder, capsys, monkeypatch, path, said):
    (folder / "locked").mkdir()
    (folder / "mine").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    output_files.warn([f"{folder}/{path}"])
    assert said.format(folder) in capsys.readouterr().err


def test_what_cannot_be_looked_at(folder, capsys):
    output_files.warn([f"{folder}/{'x' * 300}/out"])
    assert "cannot be reached (file name too long)" in capsys.readouterr().err


def test_nothing_is_said_of_another_machine(folder, capsys, monkeypatch):
    monkeypatch.setenv("COTENANT_HOST", "gpu1")
    output_files.warn([f"{folder}/missing/out"])
    assert capsys.readouterr().err == ""


def test_submission_says_it_once(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    job_builder.build_job(command=["true"], output="missing/out")
    assert capsys.readouterr().err.count("no folder") == 1
