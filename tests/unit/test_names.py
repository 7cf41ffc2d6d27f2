"""One name means one thing in the whole package. The modules are parsed, not imported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def found():
    """Modules by the name of a class that they define, and where something is called `each`."""
    classes, bindings = {}, []
    for path in sorted((ROOT / "src" / "cotenant").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        module = ast.parse(text)  # one at a time: those of all modules take the collector of garbage seconds
        where = str(path.relative_to(ROOT))
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(where)
        if "each" in text:
            bindings += [
                f"{where}:{node.lineno}"
                for node in ast.walk(module)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "each"
            ]
    return classes, bindings


def test_a_class_name_is_defined_once(found):
    classes, _ = found
    assert {name: paths for name, paths in classes.items() if len(paths) > 1} == {}


def test_no_binding_is_called_each(found):
    _, bindings = found
    assert bindings == []
