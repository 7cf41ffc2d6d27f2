"""Runs the code cells of a Jupyter notebook in this process, one after the other, as IPython's kernel does.

Of IPython's magics those count that run Python, set variables or change the folder. Shell commands run if they are
Python programs that use torch, whose training is traced as that of any script's children; others are skipped, since a
trace installs and fetches nothing.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import linecache
import os
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cotenant.tracing.process import notebook
from cotenant.tracing.process.notebook import Cell
from cotenant.tracing.training.source_bodies import set_later_cells

_IN_BRACES = re.compile(r"\{([^{}]+)\}|\$(\w+)")


def run_notebook(path: Path, assignments: Sequence[str] = ()) -> None:
    """Run its cells in a new module `__main__`. `assignments`: Python lines that set papermill's parameters.

    Raises:
        UsageError: it is no notebook that can be read. Errors of its cells come as they are.
    """
    cells = notebook.with_parameters(notebook.read_cells(path), assignments)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["ipykernel_launcher.py"]
    sys.path.insert(0, "")  # as ipykernel has it: wherever `%cd` goes
    kernel = _NotebookKernel(path, vars(module))
    kernel.run_all(cells)


class _NotebookKernel:
    """Runs cells in one namespace, which has IPython's names."""

    def __init__(self, path: Path, namespace: dict[str, Any]) -> None:
        self._path = path
        self._namespace = namespace
        shell = Shell(namespace)
        namespace.update(Out={}, _="", __="", ___="", display=_nothing, get_ipython=lambda: shell)
        namespace["__builtins__"] = builtins

    def run_all(self, cells: Sequence[Cell]) -> None:
        """Run cells, one after the other."""
        # Messages name the last part of a path and the line: `train.ipynb cell 3, line 2`.
        names = [f"{self._path} cell {cell.number}" if cell.number else f"{self._path} parameters" for cell in cells]
        sources = [notebook.python_of(cell.text) for cell in cells]
        for place, (name, source) in enumerate(zip(names, sources, strict=True), start=1):
            # Without a time of modification, `linecache.checkcache` never looks for the file.
            linecache.cache[name] = (len(source), None, [f"{line}\n" for line in source.split("\n")], name)
            set_later_cells(name, names[place:])
        for name, source, cell in zip(names, sources, cells, strict=True):
            self._run(name, source, cell)

    def _run(self, name: str, source: str, cell: Cell) -> None:
        """Run a cell; an error is raised unless the cell is tagged to have one."""
        expected = contextlib.suppress(Exception) if "raises-exception" in cell.tags else contextlib.nullcontext()
        with expected:
            self._execute(ast.parse(source, name), name, cell)

    def _execute(self, tree: ast.Module, name: str, cell: Cell) -> None:
        """Run the statements. A last expression is shown and kept in `Out`, unless a semicolon ends it."""
        last = tree.body[-1] if tree.body else None
        if not isinstance(last, ast.Expr) or cell.text.rstrip().endswith(";"):
            exec(compile(tree, name, "exec", dont_inherit=True), self._namespace)  # noqa: S102
            return
        body = ast.Module(body=tree.body[:-1], type_ignores=[])
        exec(compile(body, name, "exec", dont_inherit=True), self._namespace)  # noqa: S102
        value = eval(compile(ast.Expression(last.value), name, "eval", dont_inherit=True), self._namespace)  # noqa: S307
        if value is None:
            return
        with contextlib.suppress(Exception):  # IPython prints the error of a `__repr__` and goes on
            repr(value)
        space = self._namespace
        space["Out"][cell.number] = value
        space["___"], space["__"], space["_"] = space["__"], space["_"], value


def _nothing(*args: object, **kwargs: object) -> None:
    """`display` of a notebook that nobody looks at."""


class Shell:
    """What `get_ipython()` returns: IPython's names for shell commands and magics."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.user_ns = namespace

    def system(self, command: str) -> None:
        """Run a Python program that uses torch; skip any other command."""
        from cotenant.tracing.distributed.child_programs import training_program

        command = self._expanded(command)
        program, _ = training_program(command, str(Path.cwd()), os.environ)
        if program is None:
            print(f"not run in a trace: !{command}", file=sys.stderr)
            return
        subprocess.run(command, shell=True, check=False)  # noqa: S602 - the script's own command

    def getoutput(self, command: str) -> list[str]:
        """As `system`; the output of commands is not known."""
        self.system(command)
        return []

    def run_line_magic(self, name: str, line: str) -> None:
        """Run `%name line`; a magic that changes nothing which training meets does nothing."""
        if name in _MAGICS:
            _MAGICS[name](self, self._expanded(line))

    def run_cell_magic(self, name: str, line: str, cell: str) -> None:
        """Run the cell under `%%name line`, as far as it is a file or shell commands."""
        if name == "writefile":
            words = shlex.split(self._expanded(line))
            appends = "-a" in words
            with Path([word for word in words if word != "-a"][-1]).open("a" if appends else "w") as file:
                file.write(cell)
        elif name in ("bash", "sh", "script", "!", "system"):
            for command in cell.replace("\\\n", " ").split("\n"):
                if command.strip() and not command.lstrip().startswith("#"):
                    self.system(command.strip())

    def magic(self, text: str) -> None:
        """As `run_line_magic`, of a whole line: old notebooks write it."""
        name, _, line = text.strip().lstrip("%").partition(" ")
        self.run_line_magic(name, line)

    def _expanded(self, line: str) -> str:
        """`line` with the values of `{expression}` and `$name`; what has none stays, as in IPython."""

        def value(match: re.Match[str]) -> str:
            try:
                return str(eval(match[1] or match[2], self.user_ns))  # noqa: S307 - the notebook's own code
            except Exception:  # noqa: BLE001
                return match[0]

        return _IN_BRACES.sub(value, line)

    def change_folder(self, line: str) -> None:
        """`%cd`."""
        os.chdir(Path(line.strip().strip("'\"") or "~").expanduser())

    def set_variable(self, line: str) -> None:
        """`%env NAME=value` or `%env NAME value`."""
        name, _, value = line.replace("=", " ", 1).partition(" ")
        if value.strip():
            os.environ[name] = value.strip()

    def run_file(self, line: str) -> None:
        """`%run script.py arguments`, whose names become the notebook's."""
        import runpy

        words = [word for word in shlex.split(line) if word not in ("-i", "-n", "-t")]
        before, sys.argv = sys.argv, words
        try:
            if words[0].endswith(notebook.ENDING):
                run_cells(Path(words[0]), self.user_ns)
            else:
                found = runpy.run_path(words[0], init_globals=self.user_ns, run_name="__main__")
                self.user_ns.update({key: value for key, value in found.items() if not key.startswith("__")})
        finally:
            sys.argv = before


def run_cells(path: Path, namespace: dict[str, Any]) -> None:
    """Run the cells of another notebook in `namespace`."""
    kernel = _NotebookKernel(path.absolute(), namespace)
    kernel.run_all(notebook.read_cells(path))


_MAGICS: Mapping[str, Callable[[Shell, str], None]] = {
    "cd": Shell.change_folder,
    "env": Shell.set_variable,
    "set_env": Shell.set_variable,
    "run": Shell.run_file,
}
