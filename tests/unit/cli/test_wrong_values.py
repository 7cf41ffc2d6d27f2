"""Command lines that ask for what cannot be: exit code 2, and a message with the option and its value."""

from __future__ import annotations

import errno
import os

import pytest

from cotenant.cli import main
from cotenant.core.errors import DatasetError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """With a script, a folder and an empty file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COTENANT_SOCKET", str(tmp_path / "sock"))
    (tmp_path / "train.py").write_text("raise SystemExit('nothing is run')\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("estimate --synthetic-data WRONG train.py", "error: `--synthetic-data`: `WRONG` describes no sample"),
        ("compare --synthetic-data 3x0 train.py", "error: `--synthetic-data`: `3x0` describes no sample"),
        ("estimate --sequence-lengths p101 train.py", "error: `--sequence-lengths`: `p101` is no length"),
        ("estimate --strict 10 train.py", "error: `--strict`: must be >= 0 and <= 1, got `10`"),
        ("measure train.py --out o", "error: train.py: not TOML: "),
        ("estimate --python nope train.py", "error: no interpreter `nope`\nhint: is the environment activated? `--pyt"),
        ("estimate --python ./folder train.py", "error: no interpreter `./folder`"),
        ("estimate --python ./empty train.py", "error: no interpreter `./empty`"),
        ("estimate --gpu-mem 5X train.py", "error: `--gpu-mem`: `5X` is not a size in bytes"),
        ("estimate --gpu-mem= train.py", "error: `--gpu-mem`: `` is not a size in bytes"),
        (
            "estimate --find-batch-size --memory-limit=-3 train.py",
            "error: `--memory-limit`: `-3` is not a size in bytes",
        ),
        (
            "estimate train.py --gpu",
            "error: `--gpu` requires an argument\nhint: see `cotenant estimate --help`",
        ),
        (
            "token create --name",
            "error: `--name` requires an argument\nhint: see `cotenant token create --help`",
        ),
        (
            "submit --gpu-mem 24 true",
            "error: `--gpu-mem`: `24` is 24 MiB, less than a CUDA context takes\nhint: write `24G` for GiB, or `24M`",
        ),
        ("estimate --gpu-mem 127 train.py", "error: `--gpu-mem`: `127` is 127 MiB"),
        ("submit --gpu-mem 23.5 true", "error: `--gpu-mem`: `23.5` is 23.5 MiB"),
        ("submit --gpu-mem G true", "error: `--gpu-mem`: `G` is not a size in bytes"),
        ("submit --time=-2 true", "error: `--time`: `-2` is not a duration"),
        ("submit --time-slice 0 true", "error: `--time-slice`: `0` is zero seconds"),
        ("submit --begin soon true", "error: `--begin`: `soon` is not a time to begin"),
        ("submit --array 3-1 true", "error: `--array`: array `3-1`"),
        ("submit --gres gpu:-1 true", "error: `--gres`: must be gpu:N, got `gpu:-1`"),
        ("update 1 --time-slice x", "error: `--time-slice`: `x` is not a duration"),
        ("history --since x", "error: `--since`: `x` is not a time in the past"),
        ("gpus --history x", "error: `--history`: `x` is not a duration"),
        ("wait 1 --timeout=-1", "error: `--timeout`: `-1` is not a duration"),
        ("token create --expires x", "error: `--expires`: `x` is not a duration"),
        ("simulate --forecast --default-runtime x", "error: `--default-runtime`: `x` is not a duration"),
        ("simulate --trace t1 --policies=", "error: `--policies`: no policy given"),
        ("simulate --trace t1 --gpus=", "error: "),
        ("simulate --from-journal nope", "error: `--from-journal`: no journal at `nope`"),
        ("simulate --from-journal folder", "error: `--from-journal`: no journal at `folder`"),
        ("simulate --from-journal empty", "error: `--from-journal`: `empty` is no journal"),
        ("learn summary folder", "error: is a directory: `folder`"),
        ("learn generate --out folder cnn-small", "error: `--out`: is a directory: `folder`"),
        ("daemon --simulate 1xA100-40GB --state-dir empty", "error: `--state-dir`: file exists: `"),
        ("daemon --simulate 1xA100-40GB --state-dir=empty/x", "error: `--state-dir`: not a directory: `"),
    ],
)
def test_invalid_command_lines_exit_with_code_2(words, message, capsys):
    assert main.main(words.split()) == 2
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["estimate", ""], "the script has no name"),
        (["submit", ""], "the script or command has no name"),
        (["pack", "--here", ""], "the file of jobs has no name"),
        (["measure", ""], "`JOBS.toml` names no file or folder"),
        (["estimate", "train.py", "--html", ""], "`--html` names no file or folder"),
        (["estimate", "train.py", "--gpu", ""], "no GPU named ``"),
    ],
)
def test_an_empty_argument_is_not_the_present_folder(words, message, capsys):
    assert main.main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}")
    assert error.endswith("hint: it is empty: if a shell variable stands there, that is not set\n")


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free some space there, or name a folder on another disk"),
        (errno.EROFS, "name a folder on a disk that can be written to"),
    ],
)
def test_a_disk_that_takes_no_more_has_a_hint(monkeypatch, capsys, number, hint):
    def full(*_):
        raise OSError(number, os.strerror(number), "/there/state")

    monkeypatch.setattr("cotenant.cli.main._invoke", full)
    assert main.main(["daemon"]) == 1
    assert capsys.readouterr().err == f"error: {os.strerror(number).lower()}: `/there/state`\nhint: {hint}\n"


def test_a_missing_file_not_named_on_the_command_line_exits_with_code_1(monkeypatch, capsys):
    def absent(*_):
        raise FileNotFoundError(2, "No such file or directory", "/gone/away")

    monkeypatch.setattr("cotenant.cli.main._invoke", absent)
    assert main.main(["ls", "--format", "away"]) == 1
    assert capsys.readouterr().err == "error: no such file or directory: `/gone/away`\n"


def test_dataset_errors_are_usage_errors():
    assert DatasetError("row 3").exit_code == 2
