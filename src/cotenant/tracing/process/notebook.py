"""Reads Jupyter notebooks, and makes Python of their code cells.

Pure: JSON in, source out. Lines that only IPython understands become the calls that IPython makes of them, of
`get_ipython().system(...)`, `.run_line_magic(...)` and `.run_cell_magic(...)`; each stays on its line.
Sources: nbformat 4, `nbformat.v4.schema.json`; IPython/core/inputtransformer2.py.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.errors import UsageError

ENDING = ".ipynb"
_MAX_BYTES = 256 * 2**20
_SHELL = "get_ipython()"
_TIMERS = frozenset(("capture", "lprun", "memit", "mprun", "prun", "time", "timeit"))
"""Magics of Python code, which is put in their place. `%timeit` repeats it; once is enough for a trace.

Source: memory_profiler.py and line_profiler/ipython_extension.py for `%memit`, `%mprun` and `%lprun`.
"""
_TIMER_OPTIONS = re.compile(r"(?:-(?:[a-z]*[DTfmnrsu]\s+\S+|\w+)\s+)*")
_MEMIT_OPTIONS = re.compile(r"(?:-(?:[rt]\s+\S+|\S+)\s+)*")
_ASSIGNED = re.compile(r"(?P<names>[\w.,\s]+?)\s*=\s*(?P<mark>[!%])\s*(?P<text>.*)")
_HELP = re.compile(r"\?{1,2}[\w.*]+|[%\w.\[\]'\"*]+\?{1,2}")
_AUTOMAGIC = re.compile(r"(?:pip|conda|mamba)\s+(?:install|uninstall|list|show)\b.*|(?:cd|ls|pwd)(?:\s+[\w./~-]+)?")


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell: its place among them, from 1, its text as the notebook has it, and its tags."""

    number: int
    text: str
    tags: tuple[str, ...] = ()


def read_cells(path: Path) -> list[Cell]:
    """The code cells of a notebook, in their order.

    Raises:
        UsageError: it cannot be read, is no notebook of format 4, or is not in Python.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError(f"the notebook `{path.name}` is larger than 256 MiB", hint="clear its outputs")
        notebook = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"`{path.name}` cannot be read as a notebook: {error}") from error
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise UsageError(
            f"`{path.name}` is no notebook of format 4, which has a list of `cells`",
            hint=f"convert an older one: `jupyter nbconvert --to notebook {path.name}`",
        )
    language = _language(notebook)
    if language.lower() not in ("python", "ipython"):
        raise UsageError(f"the notebook `{path.name}` is in `{language}`, and only Python can be traced")
    codes = [cell for cell in notebook["cells"] if isinstance(cell, dict) and cell.get("cell_type") == "code"]
    return [Cell(number, _text(cell), _tags(cell)) for number, cell in enumerate(codes, start=1)]


def _language(notebook: Mapping[str, Any]) -> str:
    """The kernel's language; Python where the notebook names none."""
    metadata = notebook.get("metadata")
    for key, field in (("kernelspec", "language"), ("language_info", "name")):
        values = metadata.get(key) if isinstance(metadata, dict) else None
        if isinstance(values, dict) and isinstance(values.get(field), str):
            return str(values[field])
    return "python"


def _text(cell: Mapping[str, Any]) -> str:
    source = cell.get("source")
    lines = source if isinstance(source, list) else [source]
    return "".join(line for line in lines if isinstance(line, str))


def _tags(cell: Mapping[str, Any]) -> tuple[str, ...]:
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else None
    return tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else ()


def with_parameters(cells: Sequence[Cell], assignments: Sequence[str]) -> list[Cell]:
    """The cells with papermill's parameters, which follow the cell tagged `parameters`, or else come first."""
    if not assignments:
        return list(cells)
    tagged = next((place for place, cell in enumerate(cells, start=1) if "parameters" in cell.tags), 0)
    return [*cells[:tagged], Cell(0, "\n".join(assignments)), *cells[tagged:]]


def python_of(cell: str) -> str:
    """The Python source of a cell, line for line; what is neither Python nor IPython's stays."""
    lines = cell.split("\n")
    first = next((place for place, line in enumerate(lines) if line.strip()), 0)
    lines = _without_indent(lines, lines[first])
    if lines[first].startswith("%%"):
        name, _, rest = lines[first][2:].strip().partition(" ")
        if name in _TIMERS:
            return python_of("\n".join([*lines[:first], "", *lines[first + 1 :]]))
        call = f"{_SHELL}.run_cell_magic({name!r}, {rest.strip()!r}, {chr(10).join(lines[first + 1 :])!r})"
        return "\n".join([*lines[:first], call, *([""] * (len(lines) - first - 1))])
    tried: set[int] = set()
    while True:
        try:
            ast.parse("\n".join(lines))
        except SyntaxError as error:
            # Python names the line of the first token that it cannot place, which is the mark of IPython's line.
            place = (error.lineno or 0) - 1
            if place in tried or not 0 <= place < len(lines) or not _rewrite(lines, place):
                return "\n".join(lines)
            tried.add(place)
        except (ValueError, RecursionError, MemoryError):  # a null byte, or nested beyond the parser's limit
            return "\n".join(lines)
        else:
            return "\n".join(lines)


def _without_indent(lines: list[str], first: str) -> list[str]:
    """Lines of a cell as `leading_indent` leaves them: a method that was split off its class is a function."""
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    return [line.removeprefix(indent) for line in lines]


def _rewrite(lines: list[str], place: int) -> bool:
    """Make Python of the line at `place`, which may go on in the next ones; False if it is none of IPython's."""
    end = place
    while lines[end].endswith("\\") and end + 1 < len(lines):
        end += 1
    whole = " ".join(line.rstrip("\\").strip() for line in lines[place : end + 1])
    call = _call_for(whole)
    if call is None:
        return False
    indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
    lines[place : end + 1] = [indent + call, *([""] * (end - place))]
    return True


def _call_for(line: str) -> str | None:
    """What IPython makes of one of its own lines; None if it is none."""
    if line.startswith("!"):
        return f"{_SHELL}.system({line.lstrip('!').strip()!r})"
    if line.startswith("%"):
        return _line_magic(line.lstrip("%"))
    assigned = _ASSIGNED.fullmatch(line)
    if assigned:
        text = assigned["text"]
        value = f"{_SHELL}.getoutput({text!r})" if assigned["mark"] == "!" else _line_magic(text)
        return f"{assigned['names']} = {value}"
    if _HELP.fullmatch(line):
        return "pass"
    return _line_magic(line) if _AUTOMAGIC.fullmatch(line) else None


def _line_magic(text: str) -> str:
    name, _, rest = text.strip().partition(" ")
    if name in _TIMERS:
        options = _MEMIT_OPTIONS if name == "memit" else _TIMER_OPTIONS
        return options.sub("", rest.lstrip(), count=1)
    return f"{_SHELL}.run_line_magic({name!r}, {rest.strip()!r})"
