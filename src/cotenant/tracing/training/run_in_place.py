"""Runs statements of a script as if its function had come to them, where it cannot go on at their line.

A module of its own: it is called in a trace function, by what else decides.
"""

from __future__ import annotations

import ast
from types import FrameType

_LEAVES = (ast.Break, ast.Continue, ast.Pass)
_PAUSES = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)


def run_in_place(frame: FrameType, statements: list[ast.stmt]) -> bool:
    """Run them with the names of `frame`, before its present line; whether they ran without an error.

    What leaves the function or the loop is passed. An error of theirs is no error of the script: in an iteration in
    which their time has not come, they may find nothing to work on.
    """
    body = [part for statement in statements if (part := _without_leaving(statement)) is not None]
    if any(isinstance(node, (*_PAUSES, *_LEAVES, ast.Return)) for part in body for node in ast.walk(part)):
        return False
    code = compile(ast.Module(body=body, type_ignores=[]), frame.f_code.co_filename, "exec", dont_inherit=True)
    is_module = frame.f_locals is frame.f_globals
    # In one dict: comprehensions and lambdas in them see no locals of `exec`.
    names = frame.f_globals if is_module else {**frame.f_globals, **frame.f_locals}
    before = {} if is_module else dict(names)
    try:
        exec(code, names)  # noqa: S102 - the script's own statements
    except Exception:  # noqa: BLE001 - whatever the script raises
        return False
    if not is_module:
        # Before Python 3.13 it is a dict that Python copies back when the trace function returns. Asking for it again
        # fills in what the statements have set by `nonlocal`.
        frame.f_locals.update({name: value for name, value in names.items() if before.get(name) is not value})
    return True


def _without_leaving(statement: ast.stmt) -> ast.stmt | None:
    """The statement; of a `return` only its value; None of what only leaves a loop or a function."""
    if isinstance(statement, ast.Return):
        return None if statement.value is None else ast.copy_location(ast.Expr(statement.value), statement)
    return None if isinstance(statement, _LEAVES) else statement
