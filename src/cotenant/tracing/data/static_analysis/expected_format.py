"""What a script expects in a file that it opens, by its own code: lines and their parts, CSV, or JSON.

The code that follows the call of `open` is read, not run: `name, label = line.strip().split(",")` and `int(label)` say
that a line has two parts, and that the second is a whole number. Values are followed through the variables of the
function, the attributes of its class, and the functions of the module that call it. What is used in another way has no
known form, and the file is not made. What a function returns to code of another module is followed there, to the line
that called it, and arguments into functions and classes of the module, and of those of the user that it imports from.
"""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Sequence
from typing import Any

from cotenant.tracing.data.static_analysis.format_expressions import ExpressionReader
from cotenant.tracing.data.static_analysis.format_nodes import Format
from cotenant.tracing.data.static_analysis.source_tree import (
    FUNCTIONS,
    called_name,
    imported_definition,
    parsed_source,
    spans,
)

_PASSES = 2  # over a function and its class: an attribute may be used above the line that sets it


def format_at(path: str, line: int, callers: Sequence[tuple[str, int]] = ()) -> Format | None:
    """The format that the code around a call of `open` expects; None if it says too little.

    `callers`: (path, line) of the calls that led there, the innermost first.
    """
    return copy.deepcopy(_format_at(path, line, tuple(callers)))


@functools.cache  # scripts open a file of annotations for each of thousands of images
def _format_at(path: str, line: int, callers: tuple[tuple[str, int], ...]) -> Format | None:
    tree = parsed_source(path)
    scopes = _scopes(tree, line)
    if not scopes:
        return None
    reader = _StatementReader(path, line, scopes[0])
    for at in [None, *callers]:
        if at is not None:
            scopes = _scopes(parsed_source(at[0]), at[1])
            if not scopes or not reader.go_to(*at, scopes[0]):
                break
        for _ in range(_PASSES):
            reader.begin()
            for scope in scopes:
                reader.run(scope)
        if len(scopes) > 1 or not reader.is_returned():
            break
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

    def __init__(self, path: str, line: int, scope: Any) -> None:
        super().__init__(line, scope)
        self._path = path
        self._source: tuple[str, Any] | None = None  # a function of another module, and what it returns
        self._followed: set[Any] = set()
        self._results: list[Any] = []

    def begin(self) -> None:
        """Functions are followed once in a pass."""
        self._followed = set()

    def is_returned(self) -> bool:
        """Whether the function returns what it reads."""
        return self._returned is not None and isinstance(self._own, FUNCTIONS)

    def go_to(self, path: str, line: int, scope: Any) -> bool:
        """Go on at the line of another module that called the function; whether one did."""
        name = getattr(self._own, "name", "")
        calls = (node for node in ast.walk(parsed_source(path)) if isinstance(node, ast.Call) and spans(node, line))
        if not any(called_name(node) == name for node in calls):
            return False
        self._source, self._returned = (name, self._returned), None
        self._path, self._line, self._own, self._scope = path, line, scope, scope
        self._names, self._globals = {}, {}
        return True

    def _of_call(self, call: ast.Call) -> Any:
        if self._source is not None and called_name(call) == self._source[0] and spans(call, self._line):
            return self._source[1]
        return super()._of_call(call)

    def _of_function(self, name: str, values: list[Any], call: ast.Call) -> Any:
        path, definition = self._definition(call) if any(value is not None for value in values) else ("", None)
        if definition is None or definition in self._followed or definition in (self._own, self._scope):
            return super()._of_function(name, values, call)
        self._followed.add(definition)
        if path == self._path:
            return self._follow(definition, values, call)
        outside = self._path, self._line, self._globals
        self._path, self._line, self._globals = path, 0, {}
        returned = self._follow(definition, values, call)
        self._path, self._line, self._globals = outside
        if returned is None:
            self._pass_on(name, values)
        return returned

    def _definition(self, call: ast.Call) -> tuple[str, Any]:
        """The function or class that a call calls, or the method of the object itself, and the module that has it."""
        name, function = called_name(call), call.func
        is_own = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == "self"
        if not (isinstance(function, ast.Name) or is_own):
            return "", None
        tree = parsed_source(self._path)
        nodes = ast.walk(tree) if is_own else tree.body
        kinds = FUNCTIONS if is_own else (*FUNCTIONS, ast.ClassDef)
        found = next((node for node in nodes if isinstance(node, kinds) and node.name == name), None)
        return imported_definition(self._path, name) if found is None and not is_own else (self._path, found)

    def _follow(self, definition: Any, values: list[Any], call: ast.Call) -> Any:
        """Follow arguments into a function, or into a class and its methods; what the function returns."""
        is_class = isinstance(definition, ast.ClassDef)
        methods = [node for node in definition.body if isinstance(node, FUNCTIONS)] if is_class else [definition]
        methods.sort(key=lambda node: node.name != "__init__")
        names, scope = self._names, self._scope
        self._results.append(None)
        for method in methods:
            arguments = [argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)]
            taken = arguments[1:] if arguments[:1] == ["self"] else arguments
            given = [*taken[: len(call.args)], *(word.arg for word in call.keywords)]
            is_called = not is_class or method.name == "__init__"
            local = dict(zip(given, values, strict=False)) if is_called else {}
            attributes = {name: value for name, value in self._names.items() if "." in name}
            self._names, self._scope = {**attributes, **local}, method
            self._block(method.body)
        attributes = {name: value for name, value in self._names.items() if "." in name}
        self._names, self._scope = {**names, **attributes}, scope
        returned = self._results.pop()
        return None if is_class else returned

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
            if self._results and value is not None:
                self._results[-1] = value
        elif isinstance(statement, (ast.For, ast.AsyncFor)):
            self._bind_loop(statement.target, statement.iter)
        elif isinstance(statement, ast.With):
            for item in statement.items:
                self._bind_optional(item.optional_vars, self._value(item.context_expr))
        else:
            self._inner(statement)
        for block in _blocks(statement, self._line):
            self._block(block)
        for handler in getattr(statement, "handlers", ()):
            self._block(handler.body)

    def _assign(self, statement: ast.Assign | ast.AnnAssign) -> None:
        value = self._value(statement.value)
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            self._bind(target, value)
            if isinstance(target, ast.Name) and isinstance(statement.value, ast.Constant):
                self._constants[target.id] = statement.value.value


def _blocks(statement: Any, line: int) -> list[list[ast.stmt]]:
    """The statements in a statement; of an `if`, those of the branch that has the line."""
    blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    around = [block for block in blocks if any(spans(inner, line) for inner in block)]
    return around if isinstance(statement, ast.If) and around else blocks
