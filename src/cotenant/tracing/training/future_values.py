"""The value of an expression after some rounds of a loop: `64 + step // 100 * 64`, from its source and the values now.

A string, None or a number counts as known where the loop does not assign it, as `mode` in
`step % 16 == 0 and mode != "plain"`, and not `accuracy` in `step > 100 and accuracy > best`.
"""

from __future__ import annotations

import argparse
import ast
import operator
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from cotenant.tracing.training.function_values import returned
from cotenant.tracing.training.loop_counters import Counters, FutureValue
from cotenant.tracing.training.source_values import number_of, value_of

_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}
_COMPARISONS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ROUNDINGS: Mapping[str, Callable[..., Any]] = {"min": min, "max": max, "int": int, "round": round, "abs": abs}
OPTIONS = (argparse.Namespace, SimpleNamespace)  # objects whose attributes stay as they are


def future_value(node: ast.expr, counters: Counters, names: Mapping[str, Any], used: set[str]) -> FutureValue | None:
    """An expression's value after so many rounds; None: not known. The counters that it has are added to `used`."""
    if isinstance(node, ast.BoolOp):
        operands = [value for part in node.values if (value := future_value(part, counters, names, used)) is not None]
        join = all if isinstance(node.op, ast.And) else any
        return (lambda rounds: join(value(rounds) for value in operands)) if operands else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = future_value(node.operand, counters, names, used)
        return None if inner is None else lambda rounds: not inner(rounds)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _combined(_ARITHMETIC[type(node.op)], node.left, node.right, counters, names, used)
    if isinstance(node, ast.Call):
        return _future_call(node, counters, names, used)
    if isinstance(node, ast.IfExp):
        parts = [future_value(part, counters, names, used) for part in (node.test, node.body, node.orelse)]
        test, body, otherwise = parts
        if test is None or body is None or otherwise is None:
            return None
        return lambda rounds: body(rounds) if test(rounds) else otherwise(rounds)
    if isinstance(node, ast.Compare):
        pairs = zip([node.left, *node.comparators], node.ops, node.comparators, strict=False)  # of `1 <= step < 9`, two
        found = [_compared(*pair, counters, names, used) for pair in pairs]
        compared = [value for value in found if value is not None]
        return (lambda rounds: all(value(rounds) for value in compared)) if len(compared) == len(found) else None
    known, text = number_of(node, names), ast.unparse(node)
    if text in counters.bound:
        return counters.bound[text]
    if text in counters.not_known:
        return None
    if known is None:
        return _fixed_value(node, counters.assigned, names)
    stride, ahead = counters.strides.get(text, 0), counters.ahead.get(text, 0)
    if not stride and text in counters.changing:
        return None
    if stride:
        used.add(text)
    return lambda rounds: known + stride * (rounds + ahead)


def _future_call(node: ast.Call, counters: Counters, names: Mapping[str, Any], used: set[str]) -> FutureValue | None:
    """Of `min`, `max` and the like, with arguments that are known, and of functions of the script."""
    name = node.func.id if isinstance(node.func, ast.Name) and node.func.id not in names else ""
    arguments = [future_value(part, counters, names, used) for part in node.args]
    known = [argument for argument in arguments if argument is not None]
    if name not in _ROUNDINGS:
        return returned(node, counters, names, lambda part, seen, there: future_value(part, seen, there, used))
    if len(known) != len(node.args) or not known or node.keywords:
        return None
    return lambda rounds: _ROUNDINGS[name](*(argument(rounds) for argument in known))


def _compared(
    left: ast.expr,
    comparison: ast.cmpop,
    right: ast.expr,
    counters: Counters,
    names: Mapping[str, Any],
    used: set[str],
) -> FutureValue | None:
    if type(comparison) in _COMPARISONS:
        return _combined(_COMPARISONS[type(comparison)], left, right, counters, names, used)
    member, among = future_value(left, counters, names, used), _elements(right, names)
    if member is None or among is None:
        return None
    return lambda rounds: (member(rounds) in among) == isinstance(comparison, ast.In)


def _combined(
    operation: Callable[[Any, Any], Any],
    left: ast.expr,
    right: ast.expr,
    counters: Counters,
    names: Mapping[str, Any],
    used: set[str],
) -> FutureValue | None:
    first, second = (future_value(node, counters, names, used) for node in (left, right))
    if first is None or second is None:
        return None
    return lambda rounds: operation(first(rounds), second(rounds))


def _fixed_value(node: ast.expr, assigned: frozenset[str], names: Mapping[str, Any]) -> FutureValue | None:
    """A string or None that stays as it is; None where it may change, or is not known."""
    if isinstance(node, ast.Constant):
        value, is_known = node.value, True
    else:
        value, is_known = value_of(node, names), isinstance(node, ast.Name) and node.id in names
        if isinstance(node, ast.Attribute):
            owner = value_of(node.value, names)
            is_known = isinstance(owner, OPTIONS) and node.attr in vars(owner)
        if ast.unparse(node) in assigned or (value is None and not is_known):
            return None
    return (lambda _rounds: value) if value is None or isinstance(value, str) else None


def _elements(node: ast.expr, names: Mapping[str, Any]) -> frozenset[Any] | None:
    """The numbers and strings in a list that an expression is or names, or the keys of a dict; None for another one."""
    found: list[Any]
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        parts = node.elts
        found = [part.value if isinstance(part, ast.Constant) else number_of(part, names) for part in parts]
    else:
        value = value_of(node, names)
        found = list(value) if type(value) in (list, tuple, set, range, dict) else [None]
    return frozenset(found) if found and all(isinstance(value, (int, float, str)) for value in found) else None
