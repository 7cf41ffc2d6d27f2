"""Conditions on what a loop leaves for its next iteration: `if made:`, `if teacher is not None:`.

A first epoch trains on labels, and what it predicts makes the next one train on more; a task leaves its model, which
the next one is compared with. Such a branch is not entered in the first iteration of the outer loop and is in the
second: a name that is None, false or empty where the training is, and that the outer loop sets or fills behind it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from cotenant.tracing.training.source_loops import guarded_conditions
from cotenant.tracing.training.source_values import value_of

_FILL = frozenset({"append", "extend", "add", "update", "insert", "appendleft"})
_EMPTY = (bool, int, str, list, dict, set, tuple)  # and None: others may have a `__bool__` or `__len__` of a script


def set_later(inner: ast.AST, names: Mapping[str, Any], outer: ast.AST, line: int) -> Iterator[ast.If]:
    """Conditions in `inner` that are false now and that the rest of the loop `outer`, from `line` on, may make true.

    `names`: those of the frame that `inner` runs in. Names that `inner` sets itself are its own.
    """
    before, behind = _changes(outer, line)
    for condition, _ in guarded_conditions(inner):
        if any(text in behind - before and _is_empty(text, names) for text in _tested(condition.test)):
            yield condition


def _is_empty(text: str, names: Mapping[str, Any]) -> bool:
    node = root = ast.parse(text, mode="eval").body
    while isinstance(root, ast.Attribute):
        root = root.value
    value = value_of(node, names)
    is_known = isinstance(root, ast.Name) and root.id in names
    return is_known and (value is None or (type(value) in _EMPTY and not value))


def _tested(test: ast.expr) -> Iterator[str]:
    """Names that must all be set for a condition to be true; none of a condition of another kind."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for part in test.values:
            yield from _tested(part)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot):
        against = test.comparators[0]
        if isinstance(against, ast.Constant) and against.value is None:
            yield from _tested(test.left)
    elif isinstance(test, (ast.Name, ast.Attribute)):
        yield ast.unparse(test)


@functools.cache  # of each loop once, and not at each step
def _changes(loop: ast.AST, line: int) -> tuple[frozenset[str], frozenset[str]]:
    """Source texts of what a loop sets or fills before a line, and in it or behind it.

    The line is one that runs: `teacher = train(teacher)` sets its name when the training is over.
    """
    before: set[str] = set()
    behind: set[str] = set()
    for node in ast.walk(loop):
        text = ""
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            text = ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILL:
            text = ast.unparse(node.func.value)
        if text:
            (behind if getattr(node, "lineno", 0) >= line else before).add(text)
    return frozenset(before), frozenset(behind)
