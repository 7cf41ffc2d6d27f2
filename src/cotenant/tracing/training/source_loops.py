"""Loops of a script's source, and the conditions in them.

A module of its own: what comes later in a training is looked for in several ways.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

LOOPS = (ast.For, ast.While, ast.AsyncFor)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def contains(node: ast.AST, line: int) -> bool:
    """Whether a line is within a statement."""
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or 0)


def loops_around(body: list[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """Loops that contain the line, from the outermost inwards."""
    for statement in body:
        if contains(statement, line):
            if isinstance(statement, LOOPS):
                yield statement
            for name in ("body", "orelse", "finalbody"):
                yield from loops_around(getattr(statement, name, []), line)


def conditions_in(node: ast.AST) -> Iterator[ast.If]:
    """Conditions in the statements of a loop, but not those of a loop or function inside it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If):
            yield child
        if not isinstance(child, (*LOOPS, *_DEFINITIONS, ast.expr)):
            yield from conditions_in(child)
