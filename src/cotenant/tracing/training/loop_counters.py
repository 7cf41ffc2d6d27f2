"""When a condition on a loop's counter will be true, such as `step % 16 == 0`: from its text and the values now."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_MAX_ROUNDS = 10_000  # rounds of the loop that are looked at
_MAX_NUMBER = 10**9
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
}
_Later = Callable[[int], Any]  # an expression's value after so many rounds


@dataclass(frozen=True, slots=True)
class Counters:
    """Integers that a loop moves by the same amount in each round.

    Attributes:
        strides: by how it is written, what is added in a round.
        left: rounds after the present one, and whose counters end with them; None: not known.
    """

    strides: Mapping[str, int]
    left: int | None
    of_loop: frozenset[str]

    @classmethod
    def of(cls, loop: ast.AST, names: Mapping[str, Any]) -> Counters:
        """Those of a loop, as its frame's `names` have them now."""
        strides: dict[str, int] = {}
        for each in ast.walk(loop):
            if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add):
                stride = number_of(each.value, names)
                if isinstance(stride, int):
                    strides[ast.unparse(each.target)] = stride
        if not isinstance(loop, ast.For):
            return cls(strides, None, frozenset())
        name, stride, left = _of_for(loop, names)
        if name:
            strides[name] = stride
        return cls(strides, left, frozenset({name}))


def _of_for(loop: ast.For, names: Mapping[str, Any]) -> tuple[str, int, int | None]:
    """Name of the counter of `for ... in range(...)` or `enumerate(...)`, its stride and rounds left."""
    over, target = _unwrapped(loop.iter), loop.target
    if not isinstance(over, ast.Call) or not isinstance(over.func, ast.Name):
        return "", 0, None
    given = [number_of(each, names) for each in over.args]
    if over.func.id == "range" and isinstance(target, ast.Name):
        now = number_of(target, names)
        if not given or not all(isinstance(each, int) for each in given) or 0 in given[2:]:
            return target.id, 1, None
        counted = range(*(int(each) for each in given if each is not None))
        left = len(counted) - 1 - counted.index(now) if isinstance(now, int) and now in counted else None
        return target.id, counted.step, left
    if over.func.id == "enumerate" and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name) and given:
        first = next((each.value for each in over.keywords), over.args[1] if len(over.args) > 1 else ast.Constant(0))
        start, now = number_of(first, names), number_of(target.elts[0], names)
        size = _length(value_of(_unwrapped(over.args[0]), names))
        if size is None or not isinstance(start, int) or not isinstance(now, int):
            return target.elts[0].id, 1, None
        return target.elts[0].id, 1, size - 1 - now + start
    return "", 0, None


def _unwrapped(over: ast.expr) -> ast.expr:
    """What a progress bar is made of."""
    if isinstance(over, ast.Call) and ast.unparse(over.func).endswith("tqdm") and over.args:
        return over.args[0]
    return over


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - a script's own class
        return None


def when_true(test: ast.expr, counters: Counters, names: Mapping[str, Any], *, first: int) -> int | None:
    """After how many rounds, `first` or more, `test` is true; None: never, or it is not by counters alone.

    Parts of an `and` or `or` that are not known are left out.
    """
    used: set[str] = set()
    value = _later(test, counters, names, used)
    if value is None or not used:
        return None
    most = _MAX_ROUNDS
    if counters.left is not None and used <= counters.of_loop:
        most = min(most, counters.left)
    try:
        return next((rounds for rounds in range(first, most + 1) if value(rounds)), None)
    except (ArithmeticError, TypeError):
        return None


def _later(node: ast.expr, counters: Counters, names: Mapping[str, Any], used: set[str]) -> _Later | None:
    if isinstance(node, ast.BoolOp):
        parts = [each for value in node.values if (each := _later(value, counters, names, used)) is not None]
        join = all if isinstance(node.op, ast.And) else any
        return (lambda rounds: join(each(rounds) for each in parts)) if parts else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _later(node.operand, counters, names, used)
        return None if inner is None else lambda rounds: not inner(rounds)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _joined(_ARITHMETIC[type(node.op)], node.left, node.right, counters, names, used)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        return _joined(_COMPARISONS[type(node.ops[0])], node.left, node.comparators[0], counters, names, used)
    known = number_of(node, names)
    if known is None:
        return None
    stride = counters.strides.get(ast.unparse(node), 0)
    if stride:
        used.add(ast.unparse(node))
    return lambda rounds: known + stride * rounds


def _joined(
    join: Callable[[Any, Any], Any],
    left: ast.expr,
    right: ast.expr,
    counters: Counters,
    names: Mapping[str, Any],
    used: set[str],
) -> _Later | None:
    first, second = (_later(each, counters, names, used) for each in (left, right))
    if first is None or second is None:
        return None
    return lambda rounds: join(first(rounds), second(rounds))


def number_of(node: ast.expr, names: Mapping[str, Any]) -> int | float | None:
    """The number that a constant, name or attribute is; None for all else."""
    value = node.value if isinstance(node, ast.Constant) else value_of(node, names)
    return value if isinstance(value, (int, float)) and abs(value) < _MAX_NUMBER else None


def value_of(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name or an attribute stands for, without running anything of the script's; None where not known."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, names)
        own = getattr(owner, "__dict__", None)
        if not isinstance(own, dict):
            return None
        return own.get(node.attr, (own.get("_modules") or {}).get(node.attr))
    return None
