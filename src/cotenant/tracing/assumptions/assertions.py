"""Assertions of unknown values, such as that copies on several GPUs are equal: a sound program passes them.

A module of its own: loops that depend on values need another reading of a script's source.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
from collections.abc import Iterator, Mapping

_NONE: Mapping[int, bool] = {}


def asserted_truth(path: str, line: int) -> bool | None:
    """The value with which the assertion at a line of a file passes; None: none is there, or several operands."""
    return _parse_assertions(path).get(line)


@functools.cache
def _parse_assertions(path: str) -> Mapping[int, bool]:
    """Lines of assertions of one value, and whether it is asserted or its negation."""
    lines = linecache.getlines(path)
    if not any("assert" in line for line in lines):
        return _NONE
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # not the source of what runs
        return dict(_truths(ast.parse("".join(lines))))
    return _NONE


def _truths(tree: ast.AST) -> Iterator[tuple[int, bool]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            expression, truth = node.test, True
            while isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
                expression, truth = expression.operand, not truth
            # Parts of a comparison or of a call are read for other reasons than to be asserted.
            if not isinstance(expression, ast.BoolOp) and _is_value(expression):
                for line in range(expression.lineno, (expression.end_lineno or expression.lineno) + 1):
                    yield line, truth


def _is_value(expression: ast.expr) -> bool:
    """Whether the expression itself is a tensor: a name, a comparison, or a method's result such as `.all()`."""
    if isinstance(expression, ast.Call):
        arguments = [*expression.args, *(keyword.value for keyword in expression.keywords)]
        return not any(isinstance(part, ast.Call) for argument in arguments for part in ast.walk(argument))
    return isinstance(expression, (ast.Name, ast.Attribute, ast.Compare, ast.Subscript, ast.BinOp))
