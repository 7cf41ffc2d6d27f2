"""The statements of functions, files and notebooks that run, from their source.

A module of its own: what comes later in a training is looked for in several ways.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import tokenize
from collections.abc import Iterator
from types import CodeType, FrameType

_cells_behind: dict[str, list[str]] = {}  # by the file names of a notebook's cells


def set_later_cells(name: str, later: list[str]) -> None:
    """Note which cells of a notebook follow one of them, by the names of their files."""
    _cells_behind[name] = later


def later_cells(code: CodeType) -> list[str]:
    """Names of the cells that follow, where `code` is a notebook's cell itself."""
    return _cells_behind.get(code.co_filename, []) if code.co_name == "<module>" else []


def function_body(frame: FrameType) -> list[ast.stmt]:
    """The statements of the function that a frame runs; none where its source is not available."""
    return code_body(frame.f_code)


@functools.cache
def code_body(code: CodeType) -> list[ast.stmt]:
    """The same for a code object; the same nodes each time."""
    if code.co_name == "<module>":
        return file_body(code.co_filename)
    if code.co_name == "<lambda>":
        return _lambda_body(code)
    if code.co_name.startswith("<"):
        return []
    # Not the whole file: that of a library's trainer takes half a second to parse.
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]
    first = code.co_firstlineno
    try:
        block = inspect.getblock(lines)
        if block and block[0][:1].isspace():
            block, first = ["if True:\n", *block], first - 1
        tree = ast.parse("\n" * (first - 1) + "".join(block))  # `ast.increment_lineno` takes longer than to parse
    except (SyntaxError, ValueError, RecursionError, tokenize.TokenError):
        return []
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    return next((function.body for function in functions if _first_line(function) == code.co_firstlineno), [])


@functools.cache
def function_node(code: CodeType) -> ast.Module:
    """The same statements as one node, for what looks at them as at a loop."""
    return ast.Module(body=code_body(code), type_ignores=[])


@functools.cache
def file_body(path: str) -> list[ast.stmt]:
    """The statements of a file, or of a notebook's cell; none where its source is not available."""
    try:
        return ast.parse("".join(linecache.getlines(path))).body
    except (SyntaxError, ValueError, RecursionError):
        return []


def inner_blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of a compound statement, also those of `except` and `case`."""
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for part in (*getattr(statement, "handlers", []), *getattr(statement, "cases", [])):
        yield part.body


def _lambda_body(code: CodeType) -> list[ast.stmt]:
    """The expression of a `lambda`, as a statement; none where its line has several."""
    nodes = (node for statement in file_body(code.co_filename) for node in ast.walk(statement))
    found = [node.body for node in nodes if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno]
    return [ast.copy_location(ast.Expr(body), body) for body in found] if len(found) == 1 else []


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
