"""What a script expects in a file that it opens, by its own code: lines and their parts, CSV, or JSON.

The code that follows the call of `open` is read, not run: `name, label = line.strip().split(",")` and `int(label)` say
that a line has two parts, and that the second is a whole number. Values are followed through the variables of the
function, the attributes of its class, and the functions of the module that call it. What is used in another way has no
known form, and the file is not made.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from cotenant.tracing.data.class_folders import parsed_source
from cotenant.tracing.data.format_expressions import ExpressionReader
from cotenant.tracing.data.format_nodes import FUNCTIONS, Format, called_name, spans

_PASSES = 2  # over a function and its class: an attribute may be used above the line that sets it


def format_at(path: str, line: int) -> Format | None:
    """The format that the code around a call of `open` expects; None if it says too little."""
    tree = parsed_source(path)
    scopes = _scopes(tree, line)
    if not scopes:
        return None
    reader = _StatementReader(line, scopes[0])
    for _ in range(_PASSES):
        for scope in scopes:
            reader.run(scope)
    reader.end(is_called=len(scopes) > 1)
    found = reader.format
    if found is None:
        return None
    found.node.settle()
    return found if found.node.all_known() else None


def _scopes(tree: ast.Module, line: int) -> list[Any]:
    """The innermost function around a line, the methods of its class, those that call it, and the methods of theirs.

    The module and all its functions, where no function is around the line.
    """
    own = max((node for node in _functions(tree) if spans(node, line)), key=lambda node: node.lineno, default=None)
    if own is None:
        return [tree, *_functions(tree)] if tree.body else []
    calls = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and called_name(node) == own.name]
    places = [line, *(place for place in calls if not spans(own, place))]
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    around = [node for node in classes if any(spans(node, place) for place in places)]
    methods = [node for parent in around for node in parent.body if isinstance(node, FUNCTIONS)]
    callers = [node for node in _functions(tree) if any(spans(node, place) for place in places[1:])]
    return [own, *(node for node in dict.fromkeys([*callers, *methods]) if node is not own)]


def _functions(tree: ast.AST) -> list[Any]:
    return [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]


class _StatementReader(ExpressionReader):
    """Follows the statements of one function after the other."""

    def run(self, scope: Any) -> None:
        """Follow the statements of a function or module; names are its own, attributes of `self` are its class's."""
        shared = self._names if isinstance(self._scope, ast.Module) else {}
        self._globals.update({name: value for name, value in shared.items() if "." not in name})
        self._names = {name: value for name, value in self._names.items() if "." in name}
        self._scope = scope
        self._block(scope.body)

    def end(self, *, is_called: bool) -> None:
        """What the function returns goes to code of another module, unless one of this module calls it."""
        if not is_called:
            self._escape(self._returned)

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            return
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            self._assign(statement)
        elif isinstance(statement, ast.Return):
            value = self._value(statement.value)
            self._returned = value if self._scope is self._own and value is not None else self._returned
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            self._bind_loop(statement.target, statement.iter)
        elif isinstance(statement, ast.With):
            for item in statement.items:
                self._bind_optional(item.optional_vars, self._value(item.context_expr))
        else:
            self._inner(statement)
        for name in ("body", "orelse", "finalbody"):
            self._block(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", ()):
            self._block(handler.body)

    def _assign(self, statement: ast.Assign | ast.AnnAssign) -> None:
        value = self._value(statement.value)
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            self._bind(target, value)
            if isinstance(target, ast.Name) and isinstance(statement.value, ast.Constant):
                self._constants[target.id] = statement.value.value
