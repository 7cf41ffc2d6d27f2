"""Decides from the source whether statements run a model: by the names that they call, and the objects behind them."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch.utils import _contextlib
from torch.utils.data import DataLoader

from cotenant.tracing import script_location
from cotenant.tracing.training import source_bodies
from cotenant.tracing.training.later_objects import (
    class_of,
    later_value,
    method_of,
    receiver,
    with_later_objects,
)
from cotenant.tracing.training.source_values import value_of

_MAX_CALL_DEPTH = 3  # of functions of the script
_MAX_STATEMENTS = 1 << 12  # of which the nodes are remembered
_MAX_ITEMS = 64  # of a list of functions or objects
_LIBRARY_WORK = frozenset(
    {"generate", "sample", "predict", "evaluate", "validate", "test", "val", "encode", "get_preds", "predict_proba"}
)  # methods that run a model in Transformers, Lightning, Keras, Ultralytics, fastai and others
_WITHOUT_GRAD = frozenset({"no_grad", "inference_mode"})
_MATRIX_WORK = frozenset(
    {"inverse", "inv", "pinverse", "pinv", "cholesky", "cholesky_inverse", "eigh", "svd", "svd_lowrank", "qr", "solve",
     "solve_triangular", "matmul", "mm", "bmm", "einsum"}
)  # fmt: skip


def runs_model(statements: Sequence[ast.stmt], names: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether they call or copy a module, or run a backward pass, directly or through the script's own functions.

    So do methods such as `evaluate` of libraries that use torch.
    """
    names = with_later_objects(statements, names)
    return any(_runs(call, names, depth) for statement in statements for call in _calls(statement))


def infers(statements: Sequence[ast.stmt], names: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether they compute without gradients, directly or through the script's own functions.

    So does a model that is made only there, such as the pipeline of a last validation, and one of unknown kind that
    they put into evaluation mode.
    """
    nodes = [node for statement in statements for node in _nodes(statement)]
    withs = (item.context_expr for node in nodes if isinstance(node, ast.With) for item in node.items)
    if any(isinstance(part, ast.Attribute) and part.attr in _WITHOUT_GRAD for item in withs for part in ast.walk(item)):
        return True
    names = with_later_objects(statements, names)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if depth and any(_ends_training(call, names) for call in calls):
        return True
    return any(_function_infers(called_in(call, names), call, names, depth) for call in calls)


def puts_on_gpu(statements: Sequence[ast.stmt], names: Mapping[str, Any]) -> bool:
    """Whether they put a tensor or a module on a GPU themselves: by `.cuda()`, or where `device` or `to` names one."""
    for call in (call for statement in statements for call in _calls(statement)):
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        devices = [keyword.value for keyword in call.keywords if keyword.arg == "device"]
        if method == "cuda" or any(_is_gpu(node, names) for node in (*devices, *(call.args if method == "to" else ()))):
            return True
    return False


def computes_matrices(statements: Sequence[ast.stmt], names: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether they multiply, invert or factor matrices, directly or through the script's own functions."""
    nodes = [node for statement in statements for node in _nodes(statement)]
    if any(isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) for node in nodes):
        return True
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in _MATRIX_WORK:
            return True
        found = _body_and_names(called_in(call, names), call, names) if depth < _MAX_CALL_DEPTH else None
        if found is not None and computes_matrices(*found, depth + 1):
            return True
    return False


def makes_loader(statements: Sequence[ast.stmt], names: Mapping[str, Any], depth: int = 0) -> bool:
    """Whether they make a data loader, directly or through the script's own functions."""
    for call in (call for statement in statements for call in _calls(statement)):
        called = called_in(call, names)
        if isinstance(called, type) and issubclass(called, DataLoader):
            return True
        found = _body_and_names(called, call, names) if depth < _MAX_CALL_DEPTH else None
        if found is not None and makes_loader(*found, depth + 1):
            return True
    return False


def functions_called(
    statements: Sequence[ast.stmt], names: Mapping[str, Any], depth: int = 0
) -> Iterator[tuple[CodeType, Mapping[str, Any]]]:
    """The script's own functions that they call, also through others, and the names that those see.

    In `for hook in hooks: hook(step)` they are those of all hooks.
    """
    nodes = [node for statement in statements for node in _nodes(statement)]
    for called, call in all_called(nodes, names):
        code = function_code(called)
        found = _body_and_names(called, call, names) if code is not None else None
        if found is not None and code is not None:
            yield code, found[1]
            if depth < _MAX_CALL_DEPTH:
                yield from functions_called(*found, depth + 1)


def all_called(nodes: Iterable[ast.AST], names: Mapping[str, Any]) -> Iterator[tuple[Any, ast.Call]]:
    """What the calls among `nodes` call, by `called_in`; in a loop over a list, or `any(x() for x in xs)`, of all."""
    nodes = list(nodes)
    loops = [node for node in nodes if isinstance(node, (ast.For, ast.comprehension))]
    over = {ast.unparse(loop.target): value_of(loop.iter, names) for loop in loops}
    for call in (node for node in nodes if isinstance(node, ast.Call)):
        owner = receiver(call.func.value) if isinstance(call.func, ast.Attribute) else call.func
        name = owner.id if isinstance(owner, ast.Name) else ""
        items = over.get(name)
        for item in items[:_MAX_ITEMS] if isinstance(items, (list, tuple)) else [names.get(name)]:
            yield called_in(call, {**names, name: item}), call


def function_code(called: Any) -> CodeType | None:
    """The code of a Python function or method, without its decorators; None of anything else."""
    function = getattr(called, "__func__", called)
    function = inspect.unwrap(function) if isinstance(function, FunctionType) else None
    return function.__code__ if isinstance(function, FunctionType) else None


def _ends_training(call: ast.Call, names: Mapping[str, Any]) -> bool:
    """Whether it is `model.eval()` of an object that is not known yet, such as what a training returns."""
    method = call.func if isinstance(call.func, ast.Attribute) and not (call.args or call.keywords) else None
    return method is not None and method.attr == "eval" and value_of(method.value, names) is None


def evaluates(statements: Sequence[ast.stmt], owners: Collection[str]) -> bool:
    """Whether they call a method such as `evaluate` of an object by one of these names, which has no value yet."""
    called = (call.func for statement in statements for call in _calls(statement))
    return any(
        isinstance(method, ast.Attribute)
        and method.attr in _LIBRARY_WORK
        and isinstance(method.value, ast.Name)
        and method.value.id in owners
        for method in called
    )


def _is_gpu(node: ast.expr, names: Mapping[str, Any]) -> bool:
    value = node.value if isinstance(node, ast.Constant) else value_of(node, names)
    return isinstance(value, (str, torch.device)) and str(value).startswith("cuda")


def _function_infers(called: Any, call: ast.Call, names: Mapping[str, Any], depth: int) -> bool:
    function = called.__func__ if isinstance(called, MethodType) else called
    if isinstance(function, FunctionType) and function.__code__.co_filename == _contextlib.__file__:
        return True  # in a decorator such as `torch.no_grad()`
    found = _body_and_names(called, call, names) if depth < _MAX_CALL_DEPTH else None
    return found is not None and infers(*found, depth + 1)


def called_in(call: ast.Call, names: Mapping[str, Any]) -> Any:
    """What is called, without running code of the script; None where it is not known."""
    called = later_value(receiver(call.func), names)
    if called is None and isinstance(call.func, ast.Attribute):
        return method_of(later_value(receiver(call.func.value), names), call.func.attr)
    if isinstance(called, (FunctionType, MethodType, type)) or _is_module(called):
        return called
    return method_of(called, "__call__") or called


@functools.lru_cache(_MAX_STATEMENTS)
def _nodes(statement: ast.stmt) -> tuple[ast.AST, ...]:
    """The nodes of what runs in a statement, which leaves out the bodies of what it defines.

    Known by the statement, which is the same object each time: a branch of a training loop is looked at in every step.
    """
    return tuple(_running_nodes(statement))


def _running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _running_nodes(child)


@functools.lru_cache(_MAX_STATEMENTS)
def _calls(statement: ast.stmt) -> tuple[ast.Call, ...]:
    return tuple(part for part in _nodes(statement) if isinstance(part, ast.Call))


def _runs(call: ast.Call, names: Mapping[str, Any], depth: int) -> bool:
    word = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if word == "backward" and isinstance(call.func, ast.Attribute):
        return True
    if word == "grad" and len(call.args) > 1:  # of `torch.autograd`
        return True
    if word == "deepcopy":
        return any(isinstance(value_of(node, names), torch.nn.Module) for node in call.args)
    called = called_in(call, names)
    if _is_module(called) or _is_forward(called):
        return True
    return depth < _MAX_CALL_DEPTH and called is not None and _function_runs(called, call, names, depth)


def _is_module(value: Any) -> bool:
    """Whether it is a module, or will be one when the script makes it."""
    return issubclass(class_of(value), torch.nn.Module)


def _is_forward(called: Any) -> bool:
    """Whether it is `model.forward`: its body may compute with parameters alone, and call no module."""
    return isinstance(called, MethodType) and called.__name__ == "forward" and _is_module(called.__self__)


def _function_runs(called: Any, call: ast.Call, names: Mapping[str, Any], depth: int) -> bool:
    function = called.__func__ if isinstance(called, MethodType) else called
    function = inspect.unwrap(function) if isinstance(function, FunctionType) else None
    if isinstance(function, FunctionType) and not script_location.is_user_file(function.__code__.co_filename):
        return function.__name__ in _LIBRARY_WORK and "torch" in function.__globals__
    found = _body_and_names(called, call, names)
    return found is not None and runs_model(*found, depth + 1)


def _body_and_names(
    called: Any, call: ast.Call, names: Mapping[str, Any]
) -> tuple[list[ast.stmt], dict[str, Any]] | None:
    """The statements of a function of the script, and the names that they see; None for anything else."""
    arguments = [later_value(node, names) for node in call.args]
    if isinstance(called, MethodType):
        arguments.insert(0, called.__self__)
        called = called.__func__
    function = inspect.unwrap(called) if isinstance(called, FunctionType) else None
    if not isinstance(function, FunctionType) or not script_location.is_user_file(function.__code__.co_filename):
        return None
    code = function.__code__
    known = dict(function.__globals__)
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            known[name] = cell.cell_contents
        except ValueError:  # not filled yet
            continue
    known.update(zip(code.co_varnames[: code.co_argcount], arguments, strict=False))
    known.update({keyword.arg: later_value(keyword.value, names) for keyword in call.keywords if keyword.arg})
    return source_bodies.code_body(code), known
