"""What a function of the script returns in a later round of a loop: `size = get_size(epoch)`.

Its statements are read, not run: assignments to names, conditions, loops over a list of numbers, and `return`, as a
schedule has them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.training import source_bodies
from cotenant.tracing.training.loop_counters import NO_COUNTERS, Counters, FutureValue
from cotenant.tracing.training.model_calls import called_in
from cotenant.tracing.training.source_values import number_in, value_of

_MAX_STATEMENTS = 256  # of all ways through a function

Reader = Callable[[ast.expr, Counters, Mapping[str, Any]], FutureValue | None]
"""Gives an expression's value, by the counters and the names that it sees."""


def returned(call: ast.Call, counters: Counters, names: Mapping[str, Any], read: Reader) -> FutureValue | None:
    """The value of a call of a function or a method of the script; None where one part of it is not known."""
    called = called_in(call, names)
    function = called.__func__ if isinstance(called, MethodType) else called
    if not isinstance(function, FunctionType) or not script_location.is_user_file(function.__code__.co_filename):
        return None
    if any(isinstance(node, ast.Starred) for node in call.args) or any(part.arg is None for part in call.keywords):
        return None
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    own: dict[str, Any] = dict(function.__globals__)
    if isinstance(called, MethodType):
        own[parameters[0]], parameters = called.__self__, parameters[1:]
    given = dict(zip(parameters, call.args, strict=False)) | {str(part.arg): part.value for part in call.keywords}
    bound = {name: value for name, node in given.items() if (value := read(node, counters, names)) is not None}
    defaults = zip(reversed(code.co_varnames[: code.co_argcount]), reversed(function.__defaults__ or ()), strict=False)
    for name, default in (*defaults, *(function.__kwdefaults__ or {}).items()):
        if name not in given:
            bound[name] = _constant(default)
    strides = {text: stride for text, stride in counters.strides.items() if _is_same(text, own, names)}
    unknown = {text for text in counters.assigned - strides.keys() if _is_same(text, own, names)}
    inner = replace(
        NO_COUNTERS, strides=strides, bound=bound, assigned=frozenset(unknown),
        not_known=frozenset({*code.co_varnames, *unknown} - bound.keys() - own.keys() | unknown),
    )  # fmt: skip
    return _FunctionReader(own, read).block(source_bodies.code_body(code), inner)


class _FunctionReader:
    """Goes through the statements of one function, on all ways."""

    def __init__(self, names: Mapping[str, Any], read: Reader) -> None:
        self._names = names
        self._read = read
        self._left = _MAX_STATEMENTS

    def block(self, statements: Sequence[ast.stmt], counters: Counters) -> FutureValue | None:
        """What the function returns from these statements on."""
        for index, statement in enumerate(statements):
            self._left -= 1
            behind = statements[index + 1 :]
            if self._left < 0:
                return None
            if isinstance(statement, ast.Return):
                return None if statement.value is None else self._read(statement.value, counters, self._names)
            if isinstance(statement, ast.If):
                return self._condition(statement, behind, counters)
            if isinstance(statement, ast.For):
                unrolled = _unrolled(statement, self._names)
                return None if unrolled is None else self.block([*unrolled, *statement.orelse, *behind], counters)
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                value = self._read(statement.value, counters, self._names)
                counters = _with(counters, statement.targets[0].id, value)
            elif not _is_text(statement):
                return None
        return None

    def _condition(self, statement: ast.If, behind: Sequence[ast.stmt], counters: Counters) -> FutureValue | None:
        test = self._read(statement.test, counters, self._names)
        then = self.block([*statement.body, *behind], counters)
        otherwise = self.block([*statement.orelse, *behind], counters)
        if test is None or then is None or otherwise is None:
            return None
        return lambda rounds: then(rounds) if test(rounds) else otherwise(rounds)


def _with(counters: Counters, name: str, value: FutureValue | None) -> Counters:
    if value is None:
        return replace(counters, not_known=counters.not_known | {name})
    return replace(counters, bound={**counters.bound, name: value}, not_known=counters.not_known - {name})


def _unrolled(loop: ast.For, names: Mapping[str, Any]) -> list[ast.stmt] | None:
    """The statements of a loop over numbers, or over tuples of them, which it does not leave early."""
    if any(isinstance(node, (ast.Break, ast.Continue)) for node in ast.walk(loop)):
        return None
    items = _items(loop.iter, names)
    if items is None or len(items) > _MAX_STATEMENTS:
        return None
    statements: list[ast.stmt] = []
    for item in items:
        assigned = list(_assignments(loop.target, item))
        if not assigned:
            return None
        statements += [*assigned, *loop.body]
    return statements


def _items(over: ast.expr, names: Mapping[str, Any]) -> list[object] | None:
    """The elements of a list that an expression is or names, or of the `items()` of a dict; None of another one."""
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute) and over.func.attr == "items":
        found = value_of(over.func.value, names)
        return list(found.items()) if type(found) is dict else None
    try:
        found = ast.literal_eval(over) if isinstance(over, (ast.List, ast.Tuple)) else value_of(over, names)
    except ValueError:
        return None
    return list(found) if type(found) in (list, tuple) else None


def _assignments(target: ast.expr, item: object) -> Iterator[ast.stmt]:
    """What gives the names of a target their values; nothing where these are no numbers."""
    if isinstance(target, ast.Name) and isinstance(item, (int, float)):
        yield ast.Assign(targets=[target], value=ast.Constant(item))
    elif isinstance(target, ast.Tuple) and isinstance(item, (tuple, list)) and len(item) == len(target.elts):
        for part, value in zip(target.elts, item, strict=True):
            yield from _assignments(part, value)


def _constant(value: object) -> FutureValue:
    return lambda _rounds: value


def _is_same(text: str, own: Mapping[str, Any], names: Mapping[str, Any]) -> bool:
    """Whether a function sees the same number by a name as its caller."""
    value = number_in(text, own)
    return value is not None and value == number_in(text, names)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
