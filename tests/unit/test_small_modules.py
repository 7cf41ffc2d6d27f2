"""A module below 60 lines is one entry of a table, or its docstring says why it stands by itself."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "cotenant"
MIN_LINES = 60
ONE_ENTRY_EACH = (
    "cli/studies/export.py",  # a verb, in the table of `cli/studies/command.py`
    "scheduling/policies",
    "study/jobs",
    "submitit/task.py",
    "tracing/operators/gradients_in_place.py",  # a table of shape functions, in that of `builtin.py`
    "tracing/patches",
    "web/pages",
    "daemon/services/send_notification.py",
)
"""Plug-ins, verbs, programs: one file for each entry of a table elsewhere."""
REASON = re.compile(r"(module|file|program) of its own|[Oo]ne file for each|standard library only|A copy, since")

SMALL = [
    path.relative_to(ROOT).as_posix()
    for path in sorted(ROOT.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
    and len(path.read_text(encoding="utf-8").splitlines()) < MIN_LINES
    and not path.relative_to(ROOT).as_posix().startswith(ONE_ENTRY_EACH)
]


@pytest.mark.parametrize("name", SMALL)
def test_a_small_module_says_why_it_stands_by_itself(name):
    text = ast.get_docstring(ast.parse((ROOT / name).read_text(encoding="utf-8"))) or ""
    assert REASON.search(text), "merge it, or write `A module of its own: ...` into its docstring"


@pytest.mark.parametrize("name", ONE_ENTRY_EACH)
def test_what_is_excused_is_there(name):
    assert (ROOT / name).exists()
