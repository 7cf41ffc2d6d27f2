"""Which Python program a command line runs."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cotenant.core.errors import EMPTY_HINT, UsageError
from cotenant.jobfiles.shell_runners import flag_with_value
from cotenant.tracing.process import launchers, notebook, notebook_commands

_MAX_SHEBANG_BYTES = 1024
SAVING_LAUNCHER = ["-m", "cotenant.checkpoint"]
"""Runs the command behind it: `cotenant/checkpoint/__main__.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A script, module or notebook, its arguments, and the interpreter that runs it.

    Attributes:
        args: of a notebook, Python lines that set papermill's parameters.
        launcher: name and options of what starts it as several processes, e.g. `("torchrun", "--nproc-per-node", "4")`.
        folder: where a notebook runs, from the working directory.
    """

    python: str
    kind: Literal["script", "module", "notebook"]
    target: str
    args: tuple[str, ...]
    launcher: tuple[str, ...] = ()
    folder: str = "."

    def to_request(self) -> dict[str, Any]:
        """What `run_program` takes."""
        return {"kind": self.kind, "target": self.target, "args": list(self.args), "folder": self.folder}


def find_program(
    command: Sequence[str], *, workdir: str, env: Mapping[str, str], python: str, is_chosen: bool = False
) -> Program:
    """The Python program of `command`: `train.py --epochs 3`, `python -u train.py`, `python -m package.train`.

    Or a command-line tool that is a Python file, such as `trl`, or one of these behind a launcher of several processes,
    as in `torchrun --nproc-per-node 4 train.py`, or a notebook: `train.ipynb`, `papermill train.ipynb out.ipynb`.

    A script without an interpreter is run by `python`; where that `is_chosen`, so is `python train.py`, whatever a
    `python` without a folder is on the PATH.

    Raises:
        UsageError: the command runs no Python program that can be seen, or its script does not exist.
    """
    if not command:
        raise UsageError("no command to estimate", hint="give a script: `cotenant estimate train.py`")
    first, rest = command[0], list(command[1:])
    if not first:
        raise UsageError("the script has no name", hint=EMPTY_HINT)
    if first.endswith(".py") and not _is_python(first):
        if os.sep not in first and not Path(workdir, first).exists():  # recipes of Kaldi's kind put them on the PATH
            first = shutil.which(first, path=env.get("PATH", os.defpath)) or first
        return _script(python, first, rest, workdir)
    if _is_python(first):
        if rest[:2] == SAVING_LAUNCHER:
            return find_program(rest[2:], workdir=workdir, env=env, python=python, is_chosen=is_chosen)
        is_replaced = is_chosen and os.sep not in first
        return _of_python(python if is_replaced else find_interpreter(first, workdir=workdir, env=env), rest, workdir)
    launcher = Path(first).name
    notebook_run = notebook_commands.find_notebook(command)
    if notebook_run is not None:
        return _notebook(_beside(first, env) or python, notebook_run, workdir)
    if launcher in launchers.MPI:  # starts any program, also `python train.py`
        options, _, words = launchers.split(launcher, rest)
        found = find_program(words, workdir=workdir, env=env, python=python, is_chosen=is_chosen)
        return found if found.launcher else replace(found, launcher=(launcher, *options))
    if launcher in launchers.NAMES:
        return _launched(launcher, rest, _beside(first, env) or python, workdir)
    console = _console_script(first, workdir=workdir, env=env, python=python)
    if console is not None:
        path, interpreter = console
        return Program(python=interpreter, kind="script", target=path, args=tuple(rest))
    is_name = os.sep not in first and not first.startswith("-")
    is_folder = Path(workdir, first).is_dir()
    if is_folder and not (is_name and rest):  # with arguments: a repository's command, beside the package of its name
        raise UsageError(
            f"`{first}` is a folder", hint="give the script in it, or a package: `-- python -m package.train`"
        )
    is_absent = is_folder or not Path(workdir, first).exists()
    if is_name and is_absent and not shutil.which(first, path=env.get("PATH", os.defpath)):
        raise UsageError(
            f"there is no command `{first}`",
            hint="install the package that has it, put its environment on the PATH or name it with `--python`, or give "
            "the module that it runs: `-- python -m package.train`",
        )
    raise UsageError(
        f"`{Path(first).name}` is no Python script, and only Python scripts can be traced",
        hint="give the script itself: `cotenant estimate train.py -- ARGS`, or a module: `-- python -m package.train`",
    )


def _launched(launcher: str, words: list[str], python: str, workdir: str) -> Program:
    if launcher == "accelerate":
        if words[:1] != ["launch"]:
            raise UsageError(
                f"`{shlex.join([launcher, *words])}` starts no script", hint="write `accelerate launch ...`"
            )
        words = words[1:]
    options, is_module, (target, *args) = launchers.split(launcher, words)
    if is_module:
        found = Program(python=python, kind="module", target=target, args=tuple(args))
    else:
        found = _script(python, target, args, workdir)
    return replace(found, launcher=(launcher, *options))


def _console_script(word: str, *, workdir: str, env: Mapping[str, str], python: str) -> tuple[str, str] | None:
    """(path, interpreter) of a program that is a Python file, such as `litgpt`; None if it is none.

    A name is looked up on the PATH, then beside `python`.
    """
    places = [Path(workdir, word)] if os.sep in word else []
    if word and not places:
        on_path = shutil.which(word, path=env.get("PATH", os.defpath))
        places = [*([Path(on_path)] if on_path else []), Path(python).with_name(word)]
    for path in places:
        with contextlib.suppress(OSError), path.open("rb") as file:
            interpreter = _shebang_python(file.read(_MAX_SHEBANG_BYTES))
            if interpreter is not None:
                if not os.path.isabs(interpreter):  # noqa: PTH117 - a text
                    interpreter = shutil.which(interpreter, path=env.get("PATH", os.defpath)) or python
                return str(path), interpreter if Path(interpreter).exists() else python
    return None


def _shebang_python(head: bytes) -> str | None:
    """The Python that the first lines of a file name; a name alone for `env python3`. None without one.

    A path that is too long for the kernel is in the second line: pip, `_vendor/distlib/scripts.py`, `_build_shebang`.
    """
    if not head.startswith(b"#!"):
        return None
    first, _, rest = head[2:].decode(errors="replace").partition("\n")
    words = first.split()
    if words[:1] == ["/bin/sh"] and rest.startswith("'''exec'"):
        words = rest.removeprefix("'''exec'").replace('"', "").split()
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    return words[0] if words and _is_python(words[0]) else None


def _beside(word: str, env: Mapping[str, str]) -> str | None:
    """The interpreter of the environment that a launcher belongs to."""
    path = shutil.which(word, path=env.get("PATH", os.defpath))
    beside = Path(path).with_name("python") if path else None
    return str(beside) if beside is not None and beside.exists() else None


def _is_python(word: str) -> bool:
    name = Path(word).name
    return name in {"python", "python3"} or (name.startswith("python3.") and name[8:].isdigit())


def find_interpreter(word: str, *, workdir: str, env: Mapping[str, str]) -> str:
    """The path of the program `word`: of a name by the PATH of `env`, of a path from `workdir`.

    Raises:
        UsageError: there is none.
    """
    if os.sep in word:
        found = Path(workdir, word)
        if found.is_file() and os.access(found, os.X_OK):
            return str(found)
    else:
        on_path = shutil.which(word, path=env.get("PATH", os.defpath))
        if on_path:
            return on_path
    raise UsageError(
        f"no interpreter `{word}`", hint="is the environment activated? `--python` takes the path of its Python"
    )


def _of_python(python: str, words: list[str], workdir: str) -> Program:
    while words:
        word = words.pop(0)
        flag, value = flag_with_value(word)
        if flag == "c" or word == "-":
            break
        if flag == "m" and (value or words):
            module = value or words.pop(0)
            if module in launchers.MODULES:
                return _launched(launchers.MODULES[module], words, python, workdir)
            return Program(python=python, kind="module", target=module, args=tuple(words))
        if word == "--check-hash-based-pycs" or (flag and not value):
            del words[:1]
        elif not word.startswith("-"):
            return _script(python, word, words, workdir)
    raise UsageError("the command names no script to trace", hint="write e.g. `python train.py`, not `python -c ...`")


def _script(python: str, script: str, args: list[str], workdir: str) -> Program:
    path = Path(workdir, script)
    if path.is_dir():
        raise UsageError(f"`{script}` is a folder", hint="give the script in it")
    if path.exists() and not path.is_file():
        raise UsageError(f"`{script}` is not a regular file", hint="name the script itself")
    if not path.exists():
        raise UsageError(f"no script `{script}` in `{workdir}`", hint=_nearest_script(script, workdir))
    return Program(python=python, kind="script", target=script, args=tuple(args))


def _notebook(python: str, run: notebook_commands.NotebookRun, workdir: str) -> Program:
    path = Path(workdir, run.path)
    if not path.is_file():
        raise UsageError(f"no notebook `{run.path}` in `{workdir}`", hint=_nearest_script(run.path, workdir))
    notebook.read_cells(path)
    return Program(python=python, kind="notebook", target=run.path, args=run.assignments, folder=run.folder)


def _nearest_script(script: str, workdir: str) -> str:
    """What to do about a script that is not there: the file of its folder that has nearly its name."""
    import difflib  # not at import: every command imports this module

    folder = Path(workdir, script).parent
    names = [path.name for path in folder.glob(f"*{Path(script).suffix}")] if folder.is_dir() else []
    close = difflib.get_close_matches(Path(script).name, names, n=1)
    return f"did you mean `{Path(script).parent / close[0]}`?" if close else "check the path"
