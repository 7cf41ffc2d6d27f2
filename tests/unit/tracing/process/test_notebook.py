"""Notebooks as Python: what becomes of IPython's own lines, and which files are refused."""

from __future__ import annotations

import json

import pytest

from cotenant.core.errors import UsageError
from cotenant.tracing.process.notebook import Cell, python_of, read_cells, with_parameters


@pytest.mark.parametrize(
    ("line", "python"),
    [
        ("!pip install 'a b'", "get_ipython().system(\"pip install 'a b'\")"),
        ("%matplotlib inline", "get_ipython().run_line_magic('matplotlib', 'inline')"),
        ("%time y = f(x)", "y = f(x)"),
        ("%timeit -n 10 -qr 3 f(-x)", "f(-x)"),
        ("%memit x, y = f(2)", "x, y = f(2)"),
        ("%memit -r 1 -t0.5 -t 2 -i f(-x)", "f(-x)"),
        ("%lprun -f f -u 1e-3 x = f(2)", "x = f(2)"),
        ("%mprun -T log.txt -f f f(2)", "f(2)"),
        ("files = !ls data", "files = get_ipython().getoutput('ls data')"),
        ("pip install torch", "get_ipython().run_line_magic('pip', 'install torch')"),
        ("model.forward??", "pass"),
        ("?model", "pass"),
        ("x = 5 % 3", "x = 5 % 3"),
        ('text = """\n!not a command\n%nor a magic\n"""', 'text = """\n!not a command\n%nor a magic\n"""'),
    ],
)
def test_lines_of_ipython_become_its_calls(line, python):
    assert python_of(f"a = 1\n{line}\nb = 2") == f"a = 1\n{python}\nb = 2"


def test_lines_keep_their_numbers_and_their_indent():
    cell = "import os\nif True:\n    !pip install \\\n      torch\n    %cd sub\nlast = 1"
    assert python_of(cell).split("\n") == [
        "import os",
        "if True:",
        "    get_ipython().system('pip install torch')",
        "",
        "    get_ipython().run_line_magic('cd', 'sub')",
        "last = 1",
    ]


def test_a_magic_of_a_cell_takes_its_body():
    python = python_of("\n%%writefile a.py\nx = 1\n%y")
    assert python.split("\n") == ["", "get_ipython().run_cell_magic('writefile', 'a.py', 'x = 1\\n%y')", "", ""]


def test_a_cell_that_is_timed_is_python():
    assert python_of("%%time\n%cd sub\nx = 1") == "\nget_ipython().run_line_magic('cd', 'sub')\nx = 1"


def test_what_is_neither_python_nor_ipython_stays():
    assert python_of("%cd sub\nx = = 1") == "get_ipython().run_line_magic('cd', 'sub')\nx = = 1"
    assert python_of("x = '\0'") == "x = '\0'"


def saved(folder, **fields):
    path = folder / "train.ipynb"
    path.write_text(json.dumps({"nbformat": 4, "cells": [], **fields}))
    return path


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        pytest.param("  def f(self):\n    return 1", "def f(self):\n  return 1", id="a method"),
        pytest.param("\n\tx = 1\n\ty = 2", "\nx = 1\ny = 2", id="behind an empty line"),
        pytest.param("  x = 1\ny = 2", "x = 1\ny = 2", id="of some lines"),
        pytest.param("if x:\n  y = 1", "if x:\n  y = 1", id="below the first line"),
        pytest.param("", "", id="empty"),
    ],
)
def test_the_indent_of_the_first_line_is_none_of_a_cell(cell, python):
    assert python_of(cell) == python


def test_code_cells_are_read_with_their_tags(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": "# x"},
        {"cell_type": "code", "source": ["a = 1\n", "b = 2"], "metadata": {"tags": ["parameters", 3]}},
        {"cell_type": "code", "source": "c = 3"},
        {"cell_type": "code", "source": 7, "metadata": []},
        "no cell",
    ]
    path = saved(tmp_path, cells=cells, metadata={"kernelspec": {"language": "python"}})
    assert read_cells(path) == [Cell(1, "a = 1\nb = 2", ("parameters",)), Cell(2, "c = 3"), Cell(3, "")]


def test_parameters_follow_the_tagged_cell_or_come_first():
    plain, tagged, added = Cell(1, "a"), Cell(2, "b", ("parameters",)), Cell(0, "b = 1\nc = 2")
    assert with_parameters([plain, tagged, plain], ["b = 1", "c = 2"]) == [plain, tagged, added, plain]
    assert with_parameters([plain], ["b = 1", "c = 2"]) == [added, plain]
    assert with_parameters([plain], []) == [plain]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"cells": None, "worksheets": []}, "no notebook of format 4"),
        ({"metadata": {"kernelspec": {"language": "julia"}}}, "is in `julia`"),
        ({"metadata": {"language_info": {"name": "R"}}}, "is in `R`"),
    ],
)
def test_other_notebooks_are_refused(tmp_path, fields, message):
    with pytest.raises(UsageError, match=message):
        read_cells(saved(tmp_path, **fields))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, "\ud800"])
def test_what_is_no_notebook_is_refused(tmp_path, text):
    path = tmp_path / "train.ipynb"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(UsageError, match=r"as a notebook|no notebook"):
        read_cells(path)
