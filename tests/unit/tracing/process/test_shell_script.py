"""The command behind variables and a shell script."""

from __future__ import annotations

import pytest

from cotenant.core.errors import UsageError
from cotenant.tracing.process.shell_script import resolve


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sub").mkdir()
    return tmp_path


def all_resolved(folder, *command, **env):
    return resolve(command, workdir=str(folder), env={"PATH": "/bin", **env})


def resolved(folder, *command, **env):
    (only,) = all_resolved(folder, *command, **env)
    return only


def script(folder, text, name="train.sh"):
    (folder / name).write_text(text)


def test_variables_before_the_command_are_the_jobs(folder):
    found = resolved(folder, "A=1", "B=x y", "python", "train.py", "C=3")
    assert found.command == ("python", "train.py", "C=3")
    assert (found.env["A"], found.env["B"], "C" in found.env) == ("1", "x y", False)


@pytest.mark.parametrize(
    ("command", "text", "expected"),
    [
        pytest.param(
            ["./train.sh", "8", "/data", "--lr", "1"],
            '#!/bin/bash\nN=$1\nshift\ntorchrun --nproc_per_node=$N train.py "$@"\n',
            ("torchrun", "--nproc_per_node=8", "train.py", "/data", "--lr", "1"),
            id="the rest of its arguments",
        ),
        pytest.param(
            ["bash", "-e", "train.sh"],
            "mkdir -p out\npython -u train.py \\\n  --name ${NAME:-first} > out/log.txt 2>&1 &\n",
            ("python", "-u", "train.py", "--name", "first"),
            id="lines joined, redirections and other programs left out",
        ),
        pytest.param(
            ["sh", "train.sh"],
            "python train.py \\\r\n  --lr 1\r\necho done\r\n",
            ("python", "train.py", "--lr", "1"),
            id="lines that end as on Windows",
        ),
        pytest.param(
            ["train.sh", "a", "b", "c"],
            "shift 2\npython train.py $1\n",
            ("python", "train.py", "c"),
            id="two arguments shifted",
        ),
        pytest.param(
            ["train.sh"],
            "python train.py --lr 1\nif true; then python train.py --lr 1; fi\n",
            ("python", "train.py", "--lr", "1"),
            id="one command twice",
        ),
    ],
)
def test_the_command_of_a_script_is_found(folder, command, text, expected):
    script(folder, text)
    assert resolved(folder, *command).command == expected


def test_the_folder_and_the_variables_of_a_script_are_the_commands(folder):
    script(folder, "source env/bin/activate\ncd sub\nexport A=2\nB=3 python train.py\n")
    found = resolved(folder, "A=1", "bash", "train.sh")
    assert found.workdir == str(folder / "sub")
    assert (found.env["A"], found.env["B"]) == ("2", "3")
    assert found.env["PATH"] == f"{folder / 'env/bin'}:/bin"


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["python", "train.py"], id="no shell"),
        pytest.param(["bash", "-c", "python train.py"], id="a text"),
        pytest.param(["bash", "-lc", "train.sh"], id="a text for a login shell"),
        pytest.param(["bash"], id="a shell alone"),
        pytest.param([], id="nothing"),
    ],
)
def test_what_runs_no_shell_script_stays_as_it_is(folder, command):
    script(folder, "python train.py\n")
    found = resolved(folder, *command)
    assert (list(found.command), found.workdir, dict(found.env)) == (command, str(folder), {"PATH": "/bin"})


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        pytest.param("echo 1\n", "`train.sh` starts no Python program", "python train.py ARGS", id="none"),
        pytest.param("python a.py\npython b.py $B\n", r"line 2 of `train.sh`: the value", "NAME=VALUE", id="one of 2"),
        pytest.param(
            "python train.py --port $(free_port)\n", r"line 1 of `train.sh`: the value of `\$\(...\)`",
            "NAME=VALUE cotenant estimate", id="a value that only a run has",
        ),
        pytest.param(
            "\npython train.py $DATA\n", r"line 2 of `train.sh`: the value of `\$DATA`", "NAME=VALUE", id="a variable"
        ),
    ],
)  # fmt: skip
def test_why_a_script_has_no_command_is_in_the_error(folder, text, message, hint):
    script(folder, text)
    with pytest.raises(UsageError, match=message) as caught:
        resolved(folder, "bash", "train.sh")
    assert hint in caught.value.hint


def test_a_variable_that_is_set_before_the_command_has_a_value(folder):
    script(folder, "python train.py $DATA\n")
    assert resolved(folder, "DATA=/d", "bash", "train.sh").command == ("python", "train.py", "/d")


@pytest.mark.parametrize("command", [["gone.sh"], ["bash", "-e", "gone.sh"], ["sub/../sub.sh"], ["bash", "sub"]])
def test_a_script_that_cannot_be_read_is_named_with_its_folder(folder, command):
    with pytest.raises(UsageError, match=f"`{command[-1]}` in `{folder}` is no readable shell script"):
        resolved(folder, *command)


def test_the_programs_of_a_script_are_found_with_their_lines(folder):
    script(folder, "python prepare.py\ncd sub\nA=2 python train.py\n\npython prepare.py\n")
    found = all_resolved(folder, "bash", "train.sh")
    assert [(program.command[1], program.where, program.env.get("A")) for program in found] == [
        ("prepare.py", "line 1 of `train.sh`", None),
        ("train.py", "line 3 of `train.sh`", "2"),
    ]
    assert found[1].workdir == str(folder / "sub")


def test_of_many_programs_the_first_of_each_file_are_traced(folder):
    lines = ["python a.py 1", "python a.py 2", "python a.py 3", "python b.py $B", "python c.py 1", "python a.py 4"]
    script(folder, "\n".join(lines) + "\n")
    found = all_resolved(folder, "bash", "train.sh")
    assert [int(program.where.split()[1]) for program in found if program.is_traced] == [1, 2, 3, 5]
    assert [int(program.where.split()[1]) for program in found if not program.is_traced] == [4, 6]


def test_a_script_counts_the_gpus_of_the_estimate(folder):
    script(folder, "torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) train.py\n")
    (found,) = resolve(["bash", "train.sh"], workdir=str(folder), env={}, gpus=4)
    assert found.command == ("torchrun", "--nproc_per_node=4", "train.py")


@pytest.mark.parametrize("runner", ["uv run", "poetry run", "srun -n 1", "nohup", "env A=1", "conda run -n x"])
def test_programs_that_run_the_command_are_left_out(folder, runner):
    found = resolved(folder, "B=2", *runner.split(), "python", "train.py", "-p")
    assert (found.command, found.env["B"]) == (("python", "train.py", "-p"), "2")
    assert found.env.get("A") == ("1" if "A=1" in runner else None)
