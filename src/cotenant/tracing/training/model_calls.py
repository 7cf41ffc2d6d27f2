"""Decides from the source whether statements run a model: by the names that they call, and the objects behind them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.training import source_bodies
from cotenant.tracing.training.loop_counters import value_of

_MAX_CALL_DEPTH = 3  # of functions of the script
_LIBRARY_WORK = frozenset(
    {"generate", "sample", "predict", "evaluate", "validate", "test", "val", "encode", "get_preds", "predict_proba"}
)  # methods that run a model in Transformers, Lightning, Keras, Ultralytics, fastai and others
_RETURN_SELF = frozenset({"eval", "train", "to", "cuda", "requires_grad_"})  # methods of a module


def runs_model(statements: Sequence[ast.stmt], names: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether they call or copy a module, or run a backward pass, directly or through the script's own functions.

    So do methods such as `evaluate` of libraries that use torch.
    """
    return any(_runs(call, names, depth) for statement in statements for call in _calls(statement))


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _calls(child)


def _runs(call: ast.Call, names: Mapping[str, Any], depth: int) -> bool:
    word = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if word == "backward" and isinstance(call.func, ast.Attribute):
        return True
    if word == "deepcopy":
        return any(isinstance(value_of(node, names), torch.nn.Module) for node in call.args)
    called = value_of(_receiver(call.func), names)
    if isinstance(called, torch.nn.Module):
        return True
    if called is None and isinstance(call.func, ast.Attribute):
        called = _method(value_of(call.func.value, names), word)
    return depth < _MAX_CALL_DEPTH and called is not None and _function_runs(called, call, names, depth)


def _receiver(called: ast.expr) -> ast.expr:
    """`model` of `model.eval()`."""
    while isinstance(called, ast.Call) and isinstance(called.func, ast.Attribute) and called.func.attr in _RETURN_SELF:
        called = called.func.value
    return called


def _method(owner: Any, name: str) -> Any:
    """A method, looked up in the class without running code of the script."""
    found = inspect.getattr_static(type(owner), name, None) if owner is not None else None
    return MethodType(found, owner) if isinstance(found, FunctionType) else None


def _function_runs(called: Any, call: ast.Call, names: Mapping[str, Any], depth: int) -> bool:
    arguments = [value_of(node, names) for node in call.args]
    if isinstance(called, MethodType):
        arguments.insert(0, called.__self__)
        called = called.__func__
    if not isinstance(called, FunctionType):
        return False
    function = inspect.unwrap(called)
    if not isinstance(function, FunctionType):
        return False
    if not script_location.is_user_file(function.__code__.co_filename):
        return function.__name__ in _LIBRARY_WORK and "torch" in function.__globals__
    code = function.__code__
    known = dict(function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    known.update(zip(code.co_varnames[: code.co_argcount], arguments, strict=False))
    known.update({keyword.arg: value_of(keyword.value, names) for keyword in call.keywords if keyword.arg})
    return runs_model(source_bodies.code_body(code), known, depth + 1)
