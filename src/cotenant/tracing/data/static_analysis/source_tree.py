"""The syntax tree of a script's file, and small questions about its nodes."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from types import ModuleType
from typing import Any

from cotenant.tracing import script_location

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@functools.cache
def parsed_source(path: str) -> ast.Module:
    """The syntax tree of a file; an empty one if it has none."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two where it is nested too deeply
        return ast.Module(body=[], type_ignores=[])


def imported_definition(path: str, name: str) -> tuple[str, Any]:
    """The file of the user that has a function or class by a name of a loaded module, and its node there."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    names = next((vars(module) for module in modules if vars(module).get("__file__") == path), {})
    found = names.get(name)
    if not (inspect.isfunction(found) or inspect.isclass(found)):
        return "", None
    file = str(vars(sys.modules.get(found.__module__, ast)).get("__file__"))
    if not script_location.is_user_file(file):
        return "", None
    nodes = parsed_source(file).body
    kinds = (*FUNCTIONS, ast.ClassDef)
    return file, next((node for node in nodes if isinstance(node, kinds) and node.name == found.__name__), None)


def spans(node: Any, line: int) -> bool:
    """Whether a node has a line."""
    return bool(node.lineno <= line <= (node.end_lineno or node.lineno))


def innermost(tree: Any, line: int, kinds: tuple[type[ast.AST], ...]) -> Any:
    """The node of some kinds below `tree` that has a line and begins last; None without one."""
    nodes: list[Any] = [node for node in ast.walk(tree) if isinstance(node, kinds) and node is not tree]
    return max((node for node in nodes if spans(node, line)), key=lambda node: node.lineno, default=None)


def last_name(function: Any) -> str:
    """`load` of `torch.load` and of `load`; empty for another expression."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def called_name(node: Any) -> str:
    """The last name of the function or method that a node calls; empty for one that is no call."""
    return last_name(node.func) if isinstance(node, ast.Call) else ""


def constant(expression: Any) -> Any:
    """The value of a constant, negative numbers too."""
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.USub):
        inner = constant(expression.operand)
        return -inner if isinstance(inner, (int, float)) else None
    return expression.value if isinstance(expression, ast.Constant) else None
