"""Loops of a script's source, and the conditions in them.

A module of its own: what comes later in a training is looked for in several ways.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from cotenant.tracing.training.source_bodies import inner_blocks

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
            for block in inner_blocks(statement):
                yield from loops_around(block, line)


def conditions_in(node: ast.AST) -> Iterator[ast.If]:
    """Conditions in the statements of a loop, but not those of a loop or function inside it."""
    for condition, _ in guarded_conditions(node):
        yield condition


def guarded_conditions(
    node: ast.AST, guards: tuple[ast.expr, ...] = ()
) -> Iterator[tuple[ast.If, tuple[ast.expr, ...]]]:
    """The same, each with the tests of the conditions that it stands in, negated where it stands in the `else`."""
    for name, value in ast.iter_fields(node):
        around = guards
        if isinstance(node, ast.If):
            around = (*guards, ast.UnaryOp(op=ast.Not(), operand=node.test) if name == "orelse" else node.test)
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.If):
                yield child, around
            if not isinstance(child, (*LOOPS, *_DEFINITIONS, ast.expr)):
                yield from guarded_conditions(child, around)


def end_of_try(statement: ast.stmt, inside: list[ast.stmt] | None) -> list[ast.stmt]:
    """What a `try` runs behind its block `inside`: `else` and `finally`."""
    if not isinstance(statement, ast.Try) or inside is statement.finalbody:
        return []
    return [*(statement.orelse if inside is statement.body else []), *statement.finalbody]
