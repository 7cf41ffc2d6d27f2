"""Objects of the script's classes that statements make which have not run yet: `tester = Tester(model)`.

Nothing of the script runs to find what they would hold. An attribute is known where `__init__` sets it to an argument
that is known, or to what a method such as `to` or `eval` of it returns.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.training import source_bodies
from cotenant.tracing.training.source_values import value_of

_RETURN_SELF = frozenset({"eval", "train", "to", "cuda", "requires_grad_"})  # methods of a module
_CLASS = "_cotenant_class"


class LaterObject:
    """Stands for an object of a class of the script; its attributes are those that are known."""

    def __init__(self, made: type, attributes: Mapping[str, Any]) -> None:
        self.__dict__.update(attributes)
        self.__dict__[_CLASS] = made


def class_of(value: object) -> type:
    """The class of an object, also of one that is not made yet."""
    found = value.__dict__[_CLASS] if isinstance(value, LaterObject) else type(value)
    assert isinstance(found, type)
    return found


def receiver(called: ast.expr) -> ast.expr:
    """`model` of `model.eval()`."""
    while isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr in _RETURN_SELF:
        called = called.func.value
    return called


def method_of(owner: Any, name: str) -> MethodType | None:
    """A method, looked up in the class without running code of the script."""
    found = inspect.getattr_static(class_of(owner), name, None) if owner is not None else None
    return MethodType(found, owner) if isinstance(found, FunctionType) else None


def later_value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """As `value_of`; of a call of a class of the script, an object of it."""
    found = value_of(node, names)
    if found is not None or not isinstance(node, ast.Call):
        return found
    made = value_of(node.func, names)
    if not isinstance(made, type) or not any(map(_is_of_script, vars(made).values())):
        return None
    init = inspect.getattr_static(made, "__init__", None)
    return LaterObject(made, _attributes(init, node, names) if _is_of_script(init) else {})


def with_later_objects(statements: Sequence[ast.stmt], names: Mapping[str, Any]) -> Mapping[str, Any]:
    """The names, and those that these statements give to objects of the script's classes."""
    found: dict[str, Any] = {}
    for statement in statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            value = later_value(statement.value, {**names, **found} if found else names)
            targets = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if isinstance(value, LaterObject):
                found.update({name: value for name in targets if names.get(name) is None})
    return {**names, **found} if found else names


def _is_of_script(value: object) -> bool:
    return isinstance(value, FunctionType) and script_location.is_user_file(value.__code__.co_filename)


def _attributes(init: FunctionType, call: ast.Call, names: Mapping[str, Any]) -> dict[str, Any]:
    """What `__init__` sets attributes of its object to."""
    arguments = init.__code__.co_varnames[: init.__code__.co_argcount]
    known = dict(zip(arguments[1:], (value_of(node, names) for node in call.args), strict=False))
    known.update({keyword.arg: value_of(keyword.value, names) for keyword in call.keywords if keyword.arg})
    found: dict[str, Any] = {}
    for statement in source_bodies.code_body(init.__code__):
        if not isinstance(statement, ast.Assign) or not arguments:
            continue
        value = value_of(receiver(statement.value), known)
        for target in statement.targets:
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == arguments[0] and value is not None:
                found[target.attr] = value
    return found
