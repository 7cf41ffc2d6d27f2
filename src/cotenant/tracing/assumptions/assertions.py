"""Assertions of unknown values, such as that copies on several GPUs are equal: a sound program passes them.

An `if` that does nothing but raise, or report something and exit, is an assertion of the opposite.

A module of its own: loops that depend on values need another reading of a script's source.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from cotenant.tracing import script_location

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_READS = frozenset({"item", "float", "int"})
"""Functions and methods that read a number of a tensor."""
_EXITS = frozenset({"exit", "quit", "sys.exit", "os._exit"})
_REPORTS = frozenset({"print", "write", "flush", "debug", "info", "warning", "warn", "error", "critical", "exception"})
"""Names of functions and methods that only say why a program ends."""


@dataclass(frozen=True, slots=True)
class _Assertion:
    """A condition, and whether it is asserted or its negation."""

    expression: ast.expr
    truth: bool


_NONE: Mapping[int, _Assertion] = {}


def asserted_truth(path: str, line: int) -> bool | None:
    """The value with which the assertion at a line of a file passes; None: none is there, or several operands."""
    found = _parse_assertions(path).get(line)
    return found.truth if found is not None and _is_value(found.expression) else None


def asserted_number(frame: FrameType, default: float) -> float:
    """A number, read at the line of `frame`, with which the assertion there passes; `default` if that does."""
    found = _parse_assertions(frame.f_code.co_filename).get(frame.f_lineno)
    if found is None or not isinstance(found.expression, ast.Compare):
        return default
    operands = [found.expression.left, *found.expression.comparators]
    read = [index for index, operand in enumerate(operands) if _is_read(operand)]
    limits = [_number(operand, frame) for index, operand in enumerate(operands) if index not in read]
    if len(read) != 1 or any(limit is None for limit in limits):
        return default
    comparisons = [_COMPARISONS.get(type(kind)) for kind in found.expression.ops]

    def passes(number: float) -> bool:
        values: list[Any] = list(limits)
        values.insert(read[0], number)
        pairs = zip(comparisons, values, values[1:], strict=False)
        return all(compare is not None and compare(a, b) for compare, a, b in pairs) == found.truth

    candidates = (default, *(value for limit in limits for value in _beside(limit or 0.0)))
    return next((number for number in candidates if passes(number)), default)


def _beside(limit: float) -> tuple[float, ...]:
    return limit / 2, limit, limit * 2, limit - 1, limit + 1


@functools.cache
def _parse_assertions(path: str) -> Mapping[int, _Assertion]:
    """Assertions of one operand, by the lines of their conditions."""
    lines = linecache.getlines(path)
    if not any(word in line for line in lines for word in ("assert", "raise", "exit(", "quit(")):
        return _NONE
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # not the source of what runs
        return dict(_assertions(ast.parse("".join(lines))))
    return _NONE


def _assertions(tree: ast.AST) -> Iterator[tuple[int, _Assertion]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            expression, truth = node.test, True
        elif isinstance(node, ast.If) and _only_ends(node.body) and not node.orelse:
            expression, truth = node.test, False
        else:
            continue
        while isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
            expression, truth = expression.operand, not truth
        if not isinstance(expression, ast.BoolOp):
            for line in range(expression.lineno, (expression.end_lineno or expression.lineno) + 1):
                yield line, _Assertion(expression, truth)


def _only_ends(body: Sequence[ast.stmt]) -> bool:
    """Whether statements only report something, and then raise or exit."""
    *before, last = body
    is_end = isinstance(last, ast.Raise) or (isinstance(last, ast.Expr) and _called(last.value) in _EXITS)
    calls = (_called(statement.value) if isinstance(statement, ast.Expr) else None for statement in before)
    return is_end and all(call is not None and call.rpartition(".")[2] in _REPORTS for call in calls)


def _called(expression: ast.expr) -> str | None:
    """The function that an expression calls, as the source writes it."""
    return ast.unparse(expression.func) if isinstance(expression, ast.Call) else None


def _is_value(expression: ast.expr) -> bool:
    """Whether the expression itself is a tensor: a name, a comparison, or a method's result such as `.all()`.

    Parts of a comparison or of a call are read for other reasons than to be asserted.
    """
    if isinstance(expression, ast.Call):
        arguments = [*expression.args, *(keyword.value for keyword in expression.keywords)]
        return not any(isinstance(part, ast.Call) for argument in arguments for part in ast.walk(argument))
    return isinstance(expression, (ast.Name, ast.Attribute, ast.Compare, ast.Subscript, ast.BinOp))


def _is_read(operand: ast.expr) -> bool:
    """Whether the operand is a number that is read of a tensor, and nothing else is done to it."""
    if not isinstance(operand, ast.Call):
        return False
    name = operand.func.attr if isinstance(operand.func, ast.Attribute) else getattr(operand.func, "id", "")
    return name in _READS


def _number(operand: ast.expr, frame: FrameType) -> float | None:
    """The number that an operand is, or that its name has where `frame` is at work."""
    sign = 1
    if isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.USub):
        operand, sign = operand.operand, -1
    value: Any = operand.value if isinstance(operand, ast.Constant) else None
    if isinstance(operand, ast.Name):
        value = script_location.visible_names(frame).get(operand.id)
    return sign * value if isinstance(value, (int, float)) else None
