"""The integers that a loop of the script changes alike in each round, from its source and the values now."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cotenant.tracing.training.source_values import number_of, value_of

FutureValue = Callable[[int], Any]
"""An expression's value after so many rounds."""


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
        bound: values of names, such as those of the parameters of a function that is read.
    """

    strides: Mapping[str, int]
    rounds_left: int | None
    of_loop: frozenset[str]
    changed_at: Mapping[str, int] = field(default_factory=dict)  # lines of `step += 1`
    ahead: Mapping[str, int] = field(default_factory=dict)  # changes by which a place is ahead of the present line
    not_known: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    changing: frozenset[str] = frozenset()
    bound: Mapping[str, FutureValue] = field(default_factory=dict)

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
    over, target = unwrapped(loop.iter), loop.target
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
        now, size = number_of(counter, names), _length(value_of(unwrapped(over.args[0]), names))
        if size is None or not isinstance(start, int) or not isinstance(now, int):
            return counter.id, 1, None
        return counter.id, 1, size - 1 - now + start
    return "", 0, None


def unwrapped(over: ast.expr) -> ast.expr:
    """The iterable inside `tqdm(...)`."""
    if isinstance(over, ast.Call) and ast.unparse(over.func).endswith("tqdm") and over.args:
        return over.args[0]
    return over


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - `__len__` of a script's class raises anything, and the script did not call it
        return None
