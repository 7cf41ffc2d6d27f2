"""Branches that run where a mask selects anything: `if mask.any(): loss = f(x[mask])`.

Unknown masks select all elements (see `operators.dynamic_shapes`), so that such a branch runs. Other questions about
any element look for accidents, as `if (x < 0).any(): x = x.clamp(0)`, or say that a sequence has ended: they find none.
By the script's source: where `any` is true, its mask is an index, or is given to a function that selects.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
from collections.abc import Iterable, Iterator

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_EXITS = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_SELECTING = frozenset(
    {
        "masked_select",
        "masked_fill",
        "masked_fill_",
        "masked_scatter",
        "masked_scatter_",
        "where",
        "nonzero",
        "argwhere",
    }
)
_READING = frozenset({"item", "bool"})


def is_selecting(path: str, line: int) -> bool:
    """Whether a condition at a line of a file asks whether the mask of such a branch has a true element."""
    return line in _selecting_lines(path)


@functools.cache
def _selecting_lines(path: str) -> frozenset[int]:
    lines = linecache.getlines(path)
    if not any("any(" in line for line in lines):
        return frozenset()
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # not the source of what runs
        return frozenset(_lines(ast.parse("".join(lines))))
    return frozenset()


def _lines(tree: ast.Module) -> Iterator[int]:
    for scope in ast.walk(tree):
        if not isinstance(scope, (ast.Module, *_FUNCTIONS)):
            continue
        for node in ast.walk(scope):
            if not isinstance(node, (ast.If, ast.IfExp)):
                continue
            for mask, is_true in _questions(node.test, True):
                if any(_selects(part, mask) for part in _branch(node, is_true, scope)):
                    yield from range(node.test.lineno, (node.test.end_lineno or node.test.lineno) + 1)


def _branch(node: ast.If | ast.IfExp, is_true: bool, scope: ast.AST) -> Iterable[ast.AST]:
    """What runs where the test is `is_true`; behind an `if` that leaves, the rest of the function."""
    if isinstance(node, ast.IfExp):
        return [node.body if is_true else node.orelse]
    if is_true or node.orelse:
        return node.body if is_true else node.orelse
    if not isinstance(node.body[-1], _EXITS):
        return []
    end = node.end_lineno or node.lineno
    return [part for part in ast.walk(scope) if isinstance(part, ast.stmt) and part.lineno > end]


def _questions(test: ast.expr, sign: bool) -> Iterator[tuple[str, bool]]:
    """(mask, truth of the test where the mask has a true element) for each `any` in a test."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _questions(value, sign)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _questions(test.operand, not sign)
    elif isinstance(test, ast.Call):
        name, owner = _name_and_owner(test)
        if name in _READING and owner is not None:
            yield from _questions(owner, sign)
        elif name == "any" and owner is not None:
            yield ast.dump(owner), sign


def _name_and_owner(call: ast.Call) -> tuple[str, ast.expr | None]:
    """`any` and `mask` of `mask.any()` and of `torch.any(mask)`."""
    first = call.args[0] if call.args else None
    if not isinstance(call.func, ast.Attribute):
        return getattr(call.func, "id", ""), first
    is_of_torch = isinstance(call.func.value, ast.Name) and call.func.value.id == "torch"
    return call.func.attr, first if is_of_torch else call.func.value


def _selects(tree: ast.AST, mask: str) -> bool:
    """Whether a mask is an index in `tree`, or an argument or the object of a function that selects."""
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Subscript):
            parts = [node.slice]
        elif isinstance(node, ast.Call) and _name_and_owner(node)[0] in _SELECTING:
            parts = [node]
        if any(ast.dump(inner) == mask for part in parts for inner in ast.walk(part)):
            return True
    return False
