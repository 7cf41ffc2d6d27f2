"""Runs a script or a module in this process as Python itself does, and a notebook as its kernel does.

A module of its own: every kind of process that runs a script uses it.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotenant.tracing.process.run_notebook import run_notebook


def run_program(program: Mapping[str, Any]) -> None:
    """Run the program of a request: `kind`, `target` and `args` as in `Program`."""
    target = program["target"]
    if program["kind"] == "notebook":
        path = Path(target).absolute()
        os.chdir(program["folder"])
        run_notebook(path, program["args"])
        return
    sys.argv = [target, *program["args"]]
    if program["kind"] == "module":
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(target).resolve().parent))
        # Python makes `__file__` absolute and leaves `sys.argv[0]` as written; `runpy` sets both to one path.
        # Source: Lib/runpy.py, `_run_module_code`.
        vars(runpy)["_ModifiedArgv0"] = contextlib.nullcontext
        runpy.run_path(os.path.abspath(target), run_name="__main__")  # noqa: PTH100 - links stay
