"""Which notebook a command runs, with which parameters, and where."""

from __future__ import annotations

import shlex

import pytest

from cotenant.core.errors import UsageError
from cotenant.tracing.process.notebook_commands import NotebookRun, find_notebook


@pytest.mark.parametrize(
    ("command", "run"),
    [
        ("train.ipynb", NotebookRun("train.ipynb")),
        ("sub/train.ipynb", NotebookRun("sub/train.ipynb", folder="sub")),
        ("jupyter execute sub/train.ipynb", NotebookRun("sub/train.ipynb", folder="sub")),
        ("/env/bin/jupyter nbconvert --to notebook --execute a.ipynb", NotebookRun("a.ipynb")),
        ("jupyter-execute a.ipynb --timeout 5", NotebookRun("a.ipynb")),
        ("papermill sub/a.ipynb out.ipynb", NotebookRun("sub/a.ipynb")),
        (
            "papermill --parameters lr 1 a.ipynb o.ipynb --cwd sub -k python3 -p name x -p flag True -r id 007 -p n 3",
            NotebookRun("a.ipynb", ("lr = 1", "name = 'x'", "flag = True", "id = '007'", "n = 3"), "sub"),
        ),
        ("papermill --no-progress-bar --cwd=sub a.ipynb", NotebookRun("a.ipynb", (), "sub")),
        ("python train.py", None),
        ("train.py notes.ipynb", None),
    ],
)
def test_the_notebook_of_a_command_is_found(command, run):
    assert find_notebook(shlex.split(command)) == run


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train.ipynb --lr 1", "takes no arguments, found `--lr`"),
        ("jupyter nbconvert --to html a.ipynb", "`jupyter nbconvert` runs no notebook"),
        ("jupyter lab", "`jupyter lab` runs no notebook"),
        ("jupyter execute", "names no notebook"),
        ("papermill", "names no notebook"),
        ("papermill a.ipynb -f values.yaml", "`-f` are not read"),
        ("papermill a.ipynb -p lr", "takes a name and a value"),
        ("papermill a.ipynb -p lr;x 1", "no name of a parameter"),
    ],
)
def test_commands_that_run_none_are_refused(command, message):
    with pytest.raises(UsageError, match=message):
        find_notebook(command.split())
