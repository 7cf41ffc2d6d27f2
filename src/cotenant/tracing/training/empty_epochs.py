"""Whether a script's function fails if its loop over a loader gets no batch: it divides by a count, or uses a loss.

A module of its own: it reads source alone, and `training_rounds` decides what follows from it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import FrameType

from cotenant.tracing.training.source_bodies import function_body
from cotenant.tracing.training.source_loops import LOOPS, loops_around


def needs_a_batch(frame: FrameType) -> bool:
    """Whether what follows the loop of a frame, in its function, fails if the loop gets nothing."""
    body = function_body(frame)
    loop = next(reversed(list(loops_around(body, frame.f_lineno))), None)
    if not isinstance(loop, ast.For):
        return False
    later = [node for node in _nodes(body) if getattr(node, "lineno", 0) > (loop.end_lineno or 0)]
    counted = set(_counted(loop))
    if any(ast.unparse(part) in counted for node in later for used in _not_empty(node) for part in ast.walk(used)):
        return True
    earlier = {
        name for node in _nodes(body) if getattr(node, "lineno", loop.lineno) < loop.lineno for name in _set(node)
    }
    only_in_loop = {name for node in ast.walk(loop) for name in _set(node)} - earlier
    set_later: dict[str, int] = {}
    for node in later:
        for name in _set(node):
            set_later[name] = min(getattr(node, "lineno", sys.maxsize), set_later.get(name, sys.maxsize))
    loads = (node for node in later if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return any(node.id in only_in_loop and node.lineno < set_later.get(node.id, sys.maxsize) for node in loads)


def _nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    return (node for statement in body for node in ast.walk(statement))


def _not_empty(node: ast.AST) -> Iterator[ast.expr]:
    """What is zero or empty, and fails, if it counts nothing: `sum / count`, `losses[-1]`, `max(losses)`."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
        yield node.right if isinstance(node, ast.BinOp) else node.value
    elif isinstance(node, ast.Subscript):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"max", "min"}:
        yield from node.args


def _counted(loop: ast.For) -> Iterator[str]:
    """What a loop adds to, or appends to: `total`, `self.count`, `losses`."""
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            yield ast.unparse(node.target)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
            yield ast.unparse(node.func.value)


def _set(node: ast.AST) -> Iterator[str]:
    """A name that a node sets; that of a loop's target, too."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, LOOPS[:1]) and isinstance(node.target, ast.Name):
        yield node.target.id
