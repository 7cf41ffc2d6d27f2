"""When a condition on a loop counter, such as `step % 16 == 0`, will be true: from its source and the values now.

A string, None or a number counts as known where the loop does not assign it, as `mode` in
`step % 16 == 0 and mode != "plain"`, and not `accuracy` in `step > 100 and accuracy > best`.
"""

from __future__ import annotations

import argparse
import ast
import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from cotenant.tracing.training.source_values import number_of, value_of

MAX_ROUNDS = 10_000  # of the loop, to look ahead
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
_OPTIONS = (argparse.Namespace, SimpleNamespace)  # objects whose attributes stay as they are
_FutureValue = Callable[[int], Any]  # an expression's value after so many rounds


@dataclass(frozen=True, slots=True)
class Counters:
    """Integers that a loop changes by the same amount in each round.

    Attributes:
        strides: what a round adds, by the counter's source text.
        rounds_left: rounds after the present one; None: not known.
        of_loop: counters that end with those rounds.
        not_known: source texts of numbers that other loops count.
        assigned: source texts of what the loop assigns, which may have another value later.
        changing: of these, numbers that are not known either; arguments of a function that the loop calls are.
    """

    strides: Mapping[str, int]
    rounds_left: int | None
    of_loop: frozenset[str]
    changed_at: Mapping[str, int] = field(default_factory=dict)  # lines of `step += 1`
    ahead: Mapping[str, int] = field(default_factory=dict)  # changes by which a place is ahead of the present line
    not_known: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    changing: frozenset[str] = frozenset()

    @classmethod
    def of(cls, loop: ast.AST, names: Mapping[str, Any]) -> Counters:
        """The counters of a loop, with the values that `names` of its frame have now."""
        strides: dict[str, int] = {}
        changed_at: dict[str, int] = {}
        for name, added, line in _additions(loop):
            stride = number_of(added, names)
            if isinstance(stride, int):
                strides[name], changed_at[name] = stride, line
        assigned = assigned_in(loop)
        found = cls(strides, None, frozenset(), changed_at, assigned=assigned, changing=assigned)
        if not isinstance(loop, ast.For):
            return found
        name, stride, left = _counter_of_for(loop, names)
        if name:
            copies = _copies_of(name, loop)
            strides |= dict.fromkeys((name, *copies), stride)
            return replace(found, rounds_left=left, of_loop=frozenset({name, *copies}))
        return replace(found, rounds_left=left)

    def seen_from(self, line: int, place: int) -> Counters:
        """The same, for conditions at line `place` of the loop, while the script is at `line`."""
        first, last, change = (line, place, 1) if place > line else (place, line, -1)
        return replace(self, ahead={name: change for name, at in self.changed_at.items() if first < at < last})


@functools.cache  # of each loop once, and not at each step
def assigned_in(node: ast.AST) -> frozenset[str]:
    """Source texts of the names and attributes that statements assign."""
    return frozenset(
        ast.unparse(part)
        for part in ast.walk(node)
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Store)
    )


@functools.cache
def _additions(loop: ast.AST) -> list[tuple[str, ast.expr, int]]:
    """What a loop adds to something, by `step += 1` or `step = step + 1`: to what, how much, and in which line.

    Or takes from it, by `left -= 1`.
    """
    found = []
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            found.append((ast.unparse(node.target), node.value, node.lineno))
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Sub) and isinstance(node.value, ast.Constant):
            negative = ast.UnaryOp(op=ast.USub(), operand=node.value)
            found.append((ast.unparse(node.target), negative, node.lineno))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
            target, sides = ast.unparse(node.targets[0]), (node.value.left, node.value.right)
            for side, other in (sides, sides[::-1]):
                if ast.unparse(side) == target:
                    found.append((target, other, node.lineno))
    return found


@functools.cache
def _copies_of(counter: str, loop: ast.For) -> list[str]:
    """What a loop sets to its counter, or to a sum with it: `self.epoch = epoch`, `i = idx + args.start_iter`."""
    found = []
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Name, ast.Attribute)):
            value = node.value
            parts = [value.left, value.right] if isinstance(value, ast.BinOp) and type(value.op) is ast.Add else [value]
            if counter in map(ast.unparse, parts):
                found.append(ast.unparse(node.targets[0]))
    return found


NO_COUNTERS = Counters({}, None, frozenset())


def _counter_of_for(loop: ast.For, names: Mapping[str, Any]) -> tuple[str, int, int | None]:
    """(counter of `for ... in range(...)` or `enumerate(...)`, stride, rounds left)."""
    over, target = _unwrapped(loop.iter), loop.target
    if not isinstance(over, ast.Call) or not isinstance(over.func, ast.Name):
        return "", 0, None
    arguments = [number_of(node, names) for node in over.args]
    if over.func.id == "range" and isinstance(target, (ast.Name, ast.Attribute)):
        now, text = number_of(target, names), ast.unparse(target)
        if not arguments or not all(isinstance(value, int) for value in arguments) or 0 in arguments[2:]:
            return text, 1, None
        counted = range(*(int(value) for value in arguments if value is not None))
        left = len(counted) - 1 - counted.index(now) if isinstance(now, int) and now in counted else None
        return text, counted.step, left
    counter = target.elts[0] if isinstance(target, ast.Tuple) else None
    if over.func.id == "enumerate" and isinstance(counter, ast.Name) and arguments:
        default = over.args[1] if len(over.args) > 1 else ast.Constant(0)
        start = number_of(next((keyword.value for keyword in over.keywords), default), names)
        now, size = number_of(counter, names), _length(value_of(_unwrapped(over.args[0]), names))
        if size is None or not isinstance(start, int) or not isinstance(now, int):
            return counter.id, 1, None
        return counter.id, 1, size - 1 - now + start
    return "", 0, None


def _unwrapped(over: ast.expr) -> ast.expr:
    """The iterable inside `tqdm(...)`."""
    if isinstance(over, ast.Call) and ast.unparse(over.func).endswith("tqdm") and over.args:
        return over.args[0]
    return over


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - `__len__` of a script's class raises anything, and the script did not call it
        return None


def when_true(test: ast.expr, counters: Counters, names: Mapping[str, Any], *, first: int) -> int | None:
    """After how many rounds, `first` or more, `test` is true; None: never, or it does not depend on counters alone.

    Unknown operands of `and` and `or` are ignored.
    """
    used: set[str] = set()
    value = future_value(test, counters, names, used)
    if value is None or not used:
        return None
    last = MAX_ROUNDS
    if counters.rounds_left is not None and used <= counters.of_loop:
        last = min(last, counters.rounds_left)
    try:
        return next((rounds for rounds in range(first, last + 1) if value(rounds)), None)
    except (ArithmeticError, TypeError):
        return None


def becomes_true(test: ast.expr, counters: Counters, names: Mapping[str, Any]) -> bool | None:
    """Whether `test` is false in the present round and true in a later one; None where the counters do not say."""
    used: set[str] = set()
    if future_value(test, counters, names, used) is None or not used:
        return None
    if (rounds := when_true(test, counters, names, first=0)) is not None:
        return rounds > 0
    return False if counters.rounds_left is not None and used <= counters.of_loop else None


def may_be_true(test: ast.expr, changing: frozenset[str], names: Mapping[str, Any]) -> bool:
    """Whether `test` is true now, or depends on what is `changing`: source texts of names and attributes."""
    counters = replace(NO_COUNTERS, not_known=changing, assigned=changing)
    value = future_value(test, counters, names, set())
    try:
        return value is None or bool(value(0))
    except (ArithmeticError, TypeError):
        return True


def settled(
    test: ast.expr, assigned: frozenset[str], names: Mapping[str, Any], is_own: Callable[[str], bool]
) -> bool | None:
    """Whether a condition will be true whenever the script comes to it; None where that may change, or is not known.

    `assigned`: what the script may assign until then. `is_own`: of a name, whether only that code assigns it.
    """
    if isinstance(test, ast.BoolOp):
        found = {settled(part, assigned, names, is_own) for part in test.values}
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in found else None if None in found else not decisive
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = settled(test.operand, assigned, names, is_own)
        return None if inner is None else not inner
    known = [part for part in ast.walk(test) if isinstance(part, (ast.Name, ast.Attribute))]
    may_change = {ast.unparse(part) for part in known if not _stays(part, assigned, names, is_own)}
    counters = replace(NO_COUNTERS, not_known=frozenset(may_change), assigned=assigned)
    value = future_value(test, counters, names, set())
    try:
        return None if value is None else bool(value(0))
    except (ArithmeticError, TypeError):
        return None


def _stays(node: ast.expr, assigned: frozenset[str], names: Mapping[str, Any], is_own: Callable[[str], bool]) -> bool:
    if ast.unparse(node) in assigned:
        return False
    if isinstance(value_of(node, names), str):
        return True
    if isinstance(node, ast.Attribute):
        return isinstance(value_of(node.value, names), _OPTIONS)
    return isinstance(node, ast.Name) and is_own(node.id)


def future_value(node: ast.expr, counters: Counters, names: Mapping[str, Any], used: set[str]) -> _FutureValue | None:
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


def _future_call(node: ast.Call, counters: Counters, names: Mapping[str, Any], used: set[str]) -> _FutureValue | None:
    """Of `min`, `max` and the like, with arguments that are known."""
    name = node.func.id if isinstance(node.func, ast.Name) and node.func.id not in names else ""
    arguments = [future_value(part, counters, names, used) for part in node.args]
    known = [argument for argument in arguments if argument is not None]
    if name not in _ROUNDINGS or len(known) != len(node.args) or not known or node.keywords:
        return None
    return lambda rounds: _ROUNDINGS[name](*(argument(rounds) for argument in known))


def _compared(
    left: ast.expr,
    comparison: ast.cmpop,
    right: ast.expr,
    counters: Counters,
    names: Mapping[str, Any],
    used: set[str],
) -> _FutureValue | None:
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
) -> _FutureValue | None:
    first, second = (future_value(node, counters, names, used) for node in (left, right))
    if first is None or second is None:
        return None
    return lambda rounds: operation(first(rounds), second(rounds))


def _fixed_value(node: ast.expr, assigned: frozenset[str], names: Mapping[str, Any]) -> _FutureValue | None:
    """A string or None that stays as it is; None where it may change, or is not known."""
    if isinstance(node, ast.Constant):
        value, is_known = node.value, True
    else:
        value, is_known = value_of(node, names), isinstance(node, ast.Name) and node.id in names
        if isinstance(node, ast.Attribute):
            owner = value_of(node.value, names)
            is_known = isinstance(owner, _OPTIONS) and node.attr in vars(owner)
        if ast.unparse(node) in assigned or (value is None and not is_known):
            return None
    return (lambda _rounds: value) if value is None or isinstance(value, str) else None


def _elements(node: ast.expr, names: Mapping[str, Any]) -> frozenset[Any] | None:
    """The numbers and strings in a list or a tuple that an expression is or names; None for another expression."""
    found: list[Any]
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        parts = node.elts
        found = [part.value if isinstance(part, ast.Constant) else number_of(part, names) for part in parts]
    else:
        value = value_of(node, names)
        found = list(value) if type(value) in (list, tuple, set, range) else [None]
    return frozenset(found) if found and all(isinstance(value, (int, float, str)) for value in found) else None
