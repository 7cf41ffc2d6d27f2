"""Which Python program a command line runs."""

from __future__ import annotations

import sys

import pytest

from cotenant.core.errors import UsageError
from cotenant.tracing.process.program import find_program


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "sub").mkdir()
    return tmp_path


def find(folder, *command):
    return find_program(command, workdir=str(folder), env={"PATH": "/usr/bin:/bin"}, python="/the/python")


@pytest.mark.parametrize(
    ("command", "kind", "target", "args"),
    [
        pytest.param(["train.py"], "script", "train.py", (), id="bare script"),
        pytest.param(["train.py", "--lr", "1"], "script", "train.py", ("--lr", "1"), id="script with arguments"),
        pytest.param([sys.executable, "-u", "train.py", "-v"], "script", "train.py", ("-v",), id="interpreter flags"),
        pytest.param([sys.executable, "-W", "error", "train.py"], "script", "train.py", (), id="flag with a value"),
        pytest.param(
            [sys.executable, "-X", "dev", "train.py"], "script", "train.py", (), id="another flag with a value"
        ),
        pytest.param(
            [sys.executable, "--check-hash-based-pycs", "always", "train.py"], "script", "train.py", (), id="long flag"
        ),
        pytest.param([sys.executable, "-Wignore", "train.py"], "script", "train.py", (), id="flag that has its value"),
        pytest.param([sys.executable, "-m", "pkg.train", "-e", "2"], "module", "pkg.train", ("-e", "2"), id="module"),
        pytest.param([sys.executable, "-um", "pkg.train", "-m"], "module", "pkg.train", ("-m",), id="joined flags"),
        pytest.param([sys.executable, "-mpkg.train", "a"], "module", "pkg.train", ("a",), id="module in its flag"),
    ],
)
def test_the_program_of_a_command_is_found(folder, command, kind, target, args):
    found = find(folder, *command)
    assert (found.kind, found.target, found.args) == (kind, target, args)


@pytest.mark.parametrize(
    ("command", "python"),
    [
        pytest.param(["python3", "-u", "train.py"], "/the/python", id="a name"),
        pytest.param(["mpirun", "-n", "2", "python3", "train.py"], "/the/python", id="behind mpirun"),
        pytest.param([sys.executable, "train.py"], sys.executable, id="a path"),
    ],
)
def test_a_chosen_interpreter_runs_what_names_none_by_a_path(folder, command, python):
    found = find_program(command, workdir=str(folder), env={"PATH": "/usr/bin"}, python="/the/python", is_chosen=True)
    assert (found.python, found.target) == (python, "train.py")


@pytest.mark.parametrize(
    ("head", "python"),
    [
        pytest.param(f"#!{sys.executable} -s\n", sys.executable, id="pip"),
        pytest.param(f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n", sys.executable, id="long"),
        pytest.param("#!/usr/bin/env -S python3 -u\n", "/the/python", id="env, not on the PATH"),
        pytest.param("#!/gone/env/bin/python3\n", "/the/python", id="an interpreter that is gone"),
    ],
)
@pytest.mark.parametrize("where", ["path", "beside"])
def test_a_command_line_tool_that_is_a_python_file_is_a_program(folder, head, python, where):
    (folder / "bin").mkdir()
    tool = folder / "bin" / "trainer"
    tool.write_text(head + "import trainer\n")
    tool.chmod(0o755)
    path = str(tool.parent) if where == "path" else "/nowhere"
    other = str(folder / "bin" / "python") if where == "beside" else "/the/python"
    found = find_program(["trainer", "sft", "--", "-v"], workdir=str(folder), env={"PATH": path}, python=other)
    assert (found.kind, found.target, found.args) == ("script", str(tool), ("sft", "--", "-v"))
    assert found.python == (other if python == "/the/python" else python)


def test_another_program_is_no_python_file(folder):
    tool = folder / "tool"
    tool.write_text("#!/bin/sh\nexec python train.py\n")
    tool.chmod(0o755)
    with pytest.raises(UsageError, match="`tool` is no Python script"):
        find(folder, "./tool")


def test_a_bare_script_runs_with_the_given_python(folder):
    assert find(folder, "train.py").python == "/the/python"


def test_an_interpreter_in_the_command_is_used(folder):
    assert find(folder, sys.executable, "train.py").python == sys.executable


@pytest.mark.parametrize(
    ("command", "words"),
    [
        pytest.param([], "no command", id="empty"),
        pytest.param(["nope.py"], "no script `nope.py`", id="no such script"),
        pytest.param(["nope-train", "-c", "x.yaml"], "there is no command `nope-train`", id="no such command"),
        pytest.param(["sub"], "`sub` is a folder", id="a folder is no script"),
        pytest.param([""], "the script has no name", id="an empty word"),
        pytest.param(["sub", "start", "x.yaml"], "there is no command `sub`", id="a command beside its package"),
        pytest.param([sys.executable, "/dev/null"], "`/dev/null` is not a regular file", id="a device"),
        pytest.param(["-m", "sub.train"], "`-m` is no Python script", id="a module without an interpreter"),
        pytest.param(["bash", "-lc", "python train.py"], "`bash` is no Python script", id="a shell"),
        pytest.param([sys.executable, "-uc", "print(1)", "train.py"], "names no script", id="code in the command"),
        pytest.param([sys.executable, "sub"], "is a folder", id="a package folder"),
        pytest.param(["/no/such/python3", "train.py"], "no interpreter", id="no such interpreter"),
    ],
)
def test_a_command_without_a_program_is_refused_with_a_reason(folder, command, words):
    with pytest.raises(UsageError, match=words):
        find(folder, *command)


def test_a_script_with_nearly_the_name_is_suggested(tmp_path):
    (tmp_path / "train_gpt.py").write_text("")
    with pytest.raises(UsageError) as caught:
        find(tmp_path, "trian_gpt.py")
    assert caught.value.hint == "did you mean `train_gpt.py`?"


def test_a_script_without_a_folder_is_also_looked_up_on_the_path(folder, tmp_path_factory):
    tools = tmp_path_factory.mktemp("tools")
    (tools / "train_asr.py").write_text("")
    (tools / "train_asr.py").chmod(0o755)
    found = find_program(["train_asr.py", "--x"], workdir=str(folder), env={"PATH": str(tools)}, python="/py")
    assert (found.target, found.args, found.python) == (str(tools / "train_asr.py"), ("--x",), "/py")
