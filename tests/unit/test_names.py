"""One name means one thing in the whole package. The modules are parsed, not imported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def modules():
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "src" / "cotenant").rglob("*.py"))
    }


def test_a_class_name_is_defined_once(modules):
    found = {}
    for path, module in modules.items():
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_binding_is_called_each(modules):
    bindings = [
        f"{path}:{node.lineno}"
        for path, module in modules.items()
        for node in ast.walk(module)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == "each"
    ]
    assert bindings == []
