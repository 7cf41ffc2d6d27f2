"""Which script the advice about checkpoints is read from, and what is not read."""

from __future__ import annotations

import os

import pytest

from cotenant.cli.jobs.checkpoint_advice import habit_of, habit_view
from cotenant.jobfiles.checkpoint_habits import MAX_SCRIPT_BYTES

TEXT = "from cotenant import checkpoint\ncheckpoint.install()\ncheckpoint.exit_saved()\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(TEXT)
    (tmp_path / "train.py").write_text(TEXT)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        pytest.param("python train.py --lr 1", (), id="a script"),
        pytest.param("/usr/bin/python3 -u train.py", (), id="an interpreter with options"),
        pytest.param("python -m package.train", (), id="a module"),
        pytest.param(
            "torchrun --nproc-per-node 2 train.py", ("python -m cotenant.checkpoint torchrun ...",), id="bare"
        ),
        pytest.param("python -m cotenant.checkpoint torchrun --nproc-per-node 2 train.py", (), id="wrapped"),
    ],
)
def test_the_script_of_a_command_is_read(folder, command, missing):
    assert habit_of(command.split(), str(folder)).missing == missing


@pytest.mark.parametrize(
    ("text", "is_known"),
    [
        pytest.param("cd package\npython train.py\n", True, id="one Python command"),
        pytest.param("python train.py\npython train.py\n", False, id="two"),
        pytest.param("python train.py $SETTINGS\n", False, id="settings that are not known"),
        pytest.param("echo\n", False, id="none"),
    ],
)
def test_the_python_command_of_a_shell_script_is_read(folder, monkeypatch, text, is_known):
    monkeypatch.delenv("SETTINGS", raising=False)
    (folder / "job.sh").write_text(text)
    assert (habit_of(["bash", "job.sh"], str(folder)) is not None) == is_known
    assert (habit_of(["/bin/sh", "-c", text], str(folder)) is not None) == is_known


def make_fifo(path):
    os.mkfifo(path)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make_fifo, id="a pipe without a writer"),
        pytest.param(lambda path: path.symlink_to("/dev/zero"), id="a device without an end"),
        pytest.param(lambda path: path.mkdir(), id="a folder"),
        pytest.param(lambda path: path.symlink_to("nothing"), id="nothing"),
        pytest.param(lambda path: path.write_text(TEXT + "#" * MAX_SCRIPT_BYTES), id="too long"),
    ],
)
def test_what_is_no_script_is_not_read(folder, make):
    make(folder / "other.py")
    assert habit_of(["python", "other.py"], str(folder)) is None
    assert habit_of(["python", "-m", "other"], str(folder)) is None
    assert habit_of(["bash", "other.py"], str(folder)) is None


def test_a_terminal_is_not_read(folder):
    ours, theirs = os.openpty()
    os.write(ours, TEXT.encode())
    (folder / "other.py").symlink_to(os.ttyname(theirs))
    assert habit_of(["python", "-m", "other"], str(folder)) is None
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    "command",
    [
        ["true"],
        ["python"],
        ["python", "-c", "1"],
        ["bash"],
        ["sh", "-c"],
        ["a\0b.py"],
        [""],
        ["python", f"{'a' * 5000}.py"],
    ],
)
def test_a_command_without_a_script_has_no_habit(folder, command):
    assert habit_of(command, str(folder)) is None


def test_the_script_of_another_machine_is_not_read(folder):
    job = {"command": ["python", "train.py"], "workdir": str(folder), "checkpoint_signal": None}
    assert habit_view(job, is_remote=True) is None
    assert habit_view(job, is_remote=False) == {
        "library": "cotenant.checkpoint",
        "saves": "on a signal",
        "resumes": True,
        "missing": [],
        "advice": "saves on a signal (cotenant.checkpoint) and resumes: with --checkpointable it can be moved",
    }
