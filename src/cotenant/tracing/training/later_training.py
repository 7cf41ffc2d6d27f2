"""Training that a script does after the loop at which its trace ends: found in its text, and told."""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from cotenant.tracing import script_location

_OF_MODULES = {"train", "eval"}  # methods of modules, whatever the script's own functions are called
_TRACER = str(Path(script_location.PACKAGE_DIR, "tracing", "process", "session.py"))


def warn_later_training(recorder: Any) -> None:
    """Warn where statements after the present ones, in the script's functions that run now, train again."""
    names: set[str] = set()
    for frame in list(script_frames()):
        for statement in _after(frame):
            if _trains(statement, names):
                place = f"{Path(frame.f_code.co_filename).name}, line {statement.lineno}"
                recorder.warn(f"the training at {place}, comes after the part that was traced, and was not seen")
                return
        names.add(frame.f_code.co_name)


def script_frames() -> Iterator[FrameType]:
    """Of the script, from the innermost outwards; what called the tracer is not its own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _TRACER:
        if script_location.is_user_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _after(frame: FrameType) -> Iterator[ast.stmt]:
    """Statements of the frame's function that come after the present one, at its depth or further out."""
    body = function_body(frame)
    while body:
        at = next((i for i, each in enumerate(body) if each.lineno <= frame.f_lineno <= (each.end_lineno or 0)), None)
        if at is None:
            return
        yield from (each for each in body[at + 1 :] if each.lineno > frame.f_lineno)
        body = _inner(body[at], frame.f_lineno)


def function_body(frame: FrameType) -> list[ast.stmt]:
    """The statements of the function that a frame runs; none where its text is not what runs."""
    return code_body(frame.f_code)


def code_body(code: CodeType) -> list[ast.stmt]:
    """The same of its code."""
    tree = _tree(code.co_filename)
    if code.co_name == "<module>" or tree is None:
        return tree.body if tree is not None else []
    functions = (each for each in ast.walk(tree) if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return next((each.body for each in functions if _first_line(each) == code.co_firstlineno), [])


@functools.cache
def _tree(path: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _inner(statement: ast.stmt, line: int) -> list[ast.stmt]:
    """The block of a condition or context that holds the line; of a loop none, whose statements come again."""
    if isinstance(statement, (ast.If, ast.With, ast.Try)):
        for block in (statement.body, getattr(statement, "orelse", [])):
            if block and block[0].lineno <= line <= (block[-1].end_lineno or 0):
                return block
    return []


def _trains(statement: ast.stmt, names: set[str]) -> bool:
    """Whether it holds a backward pass, or calls one of the functions `names`, in which a step was taken."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    for each in ast.walk(statement):
        if isinstance(each, ast.Call):
            called = each.func
            if isinstance(called, ast.Attribute) and called.attr in {"backward", *names} - _OF_MODULES:
                return True
            if isinstance(called, ast.Name) and called.id in names:
                return True
    return False
