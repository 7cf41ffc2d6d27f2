"""When a condition on a loop counter, such as `step % 16 == 0`, will be true: from its source and the values now."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cotenant.tracing.training.future_values import OPTIONS, future_value
from cotenant.tracing.training.loop_counters import NO_COUNTERS, Counters
from cotenant.tracing.training.source_values import value_of

MAX_ROUNDS = 10_000  # of the loop, to look ahead


def when_true(
    test: ast.expr, counters: Counters, names: Mapping[str, Any], *, first: int, latest: bool = False
) -> int | None:
    """After how many rounds, `first` or more, `test` is true; None: never, or it does not depend on counters alone.

    Unknown operands of `and` and `or` are ignored. `latest`: the last of such rounds, and not the first.
    """
    used: set[str] = set()
    value = future_value(test, counters, names, used)
    if value is None or not used:
        return None
    last = MAX_ROUNDS
    if counters.rounds_left is not None and used <= counters.of_loop:
        last = min(last, counters.rounds_left)
    try:
        ahead = range(first, last + 1)
        return next((rounds for rounds in (reversed(ahead) if latest else ahead) if value(rounds)), None)
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
        return isinstance(value_of(node.value, names), OPTIONS)
    return isinstance(node, ast.Name) and is_own(node.id)
