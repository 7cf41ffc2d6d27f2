"""Sizes that a loop takes from a list, or computes, by its counter, or runs over: how large they will be."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cotenant.tracing.training.future_values import future_value
from cotenant.tracing.training.loop_conditions import MAX_ROUNDS
from cotenant.tracing.training.loop_counters import Counters
from cotenant.tracing.training.source_values import number_of, value_of


@dataclass(frozen=True, slots=True)
class LaterSize:
    """A size, and after how many rounds a loop comes to it."""

    size: tuple[int, ...]
    rounds: int


def larger_sizes(node: ast.expr, counters: Counters, names: Mapping[str, Any]) -> list[LaterSize]:
    """The size that an expression has in the present round, and those larger than all before in later rounds.

    A counter decides it: it is an index into a list, or a formula. Sizes are integers, or tuples of them. Empty where
    one part is not known.
    """
    used: set[str] = set()
    size_then = _size_then(node, counters, names, used)
    if size_then is None or not used:
        return []
    last = counters.rounds_left if counters.rounds_left is not None and used <= counters.of_loop else MAX_ROUNDS
    found: list[LaterSize] = []
    try:
        for rounds in range(min(last, MAX_ROUNDS) + 1):
            size = size_then(rounds)
            if not found or math.prod(size) > math.prod(found[-1].size):
                found.append(LaterSize(size, rounds))
    except (ArithmeticError, TypeError, IndexError):  # what came before the end of the list counts
        return found
    return found


def sizes_to_come(target: ast.expr, over: ast.expr, names: Mapping[str, Any]) -> list[LaterSize]:
    """The sizes in a list or tuple that a `for` loop runs over, from the present one on, each larger than all before.

    Empty where the present one is not known, or is in the list twice.
    """
    sizes, now = _sizes_in(over, names), value_of(target, names)
    if isinstance(target, ast.Tuple):
        now = tuple(number_of(part, names) for part in target.elts)
    present = now if isinstance(now, tuple) else (now,)
    found: list[LaterSize] = []
    if sizes.count(present) == 1:
        for rounds, size in enumerate(sizes[sizes.index(present) :]):
            if not found or math.prod(size) > math.prod(found[-1].size):
                found.append(LaterSize(size, rounds))
    return found


def _size_then(
    node: ast.expr, counters: Counters, names: Mapping[str, Any], used: set[str]
) -> Callable[[int], tuple[int, ...]] | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        found, key = value_of(node.func.value, names), future_value(node.args[0], counters, names, used)
        if type(found) is dict and key is not None:  # `size = sizes.get(epoch, size)`: it stays as it is otherwise
            return lambda rounds: (operator.index(found.get(key(rounds), 0)),)
    if not isinstance(node, ast.Subscript):
        value = future_value(node, counters, names, used)
        return None if value is None else lambda rounds: (operator.index(value(rounds)),)
    sizes, index = _sizes_in(node.value, names), future_value(node.slice, counters, names, used)
    return None if index is None or not sizes else lambda rounds: sizes[index(rounds)]


def size_of(target: ast.expr, names: Mapping[str, Any]) -> int:
    """The number that a target has now, or the product of its numbers, as in `height, width = sizes[0]`; 0: none."""
    value = value_of(target, names)
    if isinstance(target, ast.Tuple):
        value = tuple(number_of(part, names) for part in target.elts)
    parts = value if isinstance(value, tuple) else (value,)
    return math.prod(parts) if parts and all(type(part) is int for part in parts) else 0


def _sizes_in(node: ast.expr, names: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Sizes in a list or tuple that an expression is or names; none if it has anything else."""
    try:
        found = ast.literal_eval(node) if isinstance(node, (ast.List, ast.Tuple)) else value_of(node, names)
    except ValueError:
        return []
    sizes = [size if isinstance(size, tuple) else (size,) for size in (found if type(found) in (list, tuple) else ())]
    is_known = all(type(part) is int and part > 0 for size in sizes for part in size)
    return sizes if is_known else []
