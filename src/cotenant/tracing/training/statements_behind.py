"""Statements that a script runs behind a loop, and whether they train, or run a model, by their source."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.training import later_training, source_bodies
from cotenant.tracing.training.later_objects import with_later_objects
from cotenant.tracing.training.loop_conditions import settled
from cotenant.tracing.training.loop_counters import assigned_in
from cotenant.tracing.training.model_calls import evaluates, infers, puts_on_gpu, runs_model
from cotenant.tracing.training.source_loops import contains
from cotenant.tracing.training.source_values import value_of

RESULT = "_"
"""The name of what the running call of a statement will return, in what waits for it."""
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

Place = tuple[list[ast.stmt], int]
"""A block of statements, and the one in it that runs now."""


@dataclass(frozen=True, slots=True)
class Work:
    """A statement that runs a model, from its first to its last line."""

    path: str
    lines: range
    trains: bool

    def sentence(self) -> str:
        return later_training.work_is_later(f"{Path(self.path).name}, line {self.lines[0]}")


@dataclass(frozen=True, slots=True)
class Behind:
    """A statement of the script that runs behind a loop.

    Attributes:
        frame: where it runs; of a later cell of a notebook, that of the present one.
        path: its file.
        inner_names: of the functions that the loop is in, from the loop outwards.
    """

    frame: FrameType
    path: str
    statement: ast.stmt
    inner_names: frozenset[str]

    def trains(self) -> bool:
        """Whether it trains: as `later_training.trains`, by `x.train()` where `x` is no module, or by an optimizer.

        A step without a backward pass has it in a closure, as that of L-BFGS.
        """
        parts = self._parts()
        if any(later_training.trains(part, set(self.inner_names)) for part in parts):
            return True
        if isinstance(self.statement, _DEFINITIONS):
            return False
        names = self._names()
        calls = (node for part in parts for node in ast.walk(part) if isinstance(node, ast.Call))
        return any(self._is_training(call, names) for call in calls)

    def _is_training(self, call: ast.Call, names: Mapping[str, object]) -> bool:
        if not isinstance(call.func, ast.Attribute):
            return False
        method, owner = call.func.attr, value_of(call.func.value, names)
        if isinstance(owner, torch.optim.Optimizer):
            return method == "step"
        if owner is None and method == "step" and call.args:  # of an optimizer that is made behind the loop
            return _is_closure(call.args[0], names)
        return method in self.inner_names and owner is not None and not isinstance(owner, torch.nn.Module)

    def runs_model(self) -> bool:
        """Whether it runs a model, or puts something on a GPU for other computations, by its source."""
        names, parts = self._names(), self._parts()
        found = runs_model(parts, names) or infers(parts, names) or puts_on_gpu(parts, names)
        return found or evaluates(parts, self._assigned_now())

    def defines(self, others: set[str]) -> set[str]:
        """The name of a function that it defines, if that runs a model, or calls one of the `others`, defined before.

        A notebook, or a script made of one, defines its test behind its training.
        """
        function = self.statement
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return set()
        names = self._names()
        found = runs_model(function.body, names) or infers(function.body, names) or _calls(function.body, others)
        return {function.name} if found else set()

    def calls(self, functions: set[str]) -> bool:
        """Whether it calls one of these functions."""
        return not isinstance(self.statement, _DEFINITIONS) and _calls([self.statement], functions)

    def _assigned_now(self) -> frozenset[str]:
        """Names that get the result of what runs now, such as a trainer that the script's own function returns."""
        running = list(places(source_bodies.function_body(self.frame), self.frame.f_lineno))
        block, index = running[-1] if running else ([], 0)
        return assigned_in(block[index]) | {RESULT} if block else frozenset()

    def _parts(self) -> list[ast.stmt]:
        """The statement; of a condition that is decided already, the branch that it decides for."""
        if not isinstance(self.statement, ast.If) or self.path != self.frame.f_code.co_filename:
            return [self.statement]
        code, line = self.frame.f_code, self.frame.f_lineno
        body = source_bodies.function_body(self.frame)
        coming = [assigned_in(part) for part in body if (part.end_lineno or 0) >= line]
        declared = (node for part in body for node in ast.walk(part) if isinstance(node, (ast.Global, ast.Nonlocal)))
        assigned = frozenset().union(*coming, *(node.names for node in declared))
        is_own = {*code.co_varnames}.__contains__ if code.co_name != "<module>" else lambda _name: True
        return _decided(self.statement, lambda test: settled(test, assigned, self._names(), is_own))

    def _names(self) -> Mapping[str, Any]:
        names = script_location.visible_names(self.frame)
        return with_later_objects(source_bodies.function_body(self.frame), names)

    def work(self, *, trains: bool) -> Work:
        """The statement by its place."""
        first = self.statement.lineno
        return Work(self.path, range(first, (self.statement.end_lineno or first) + 1), trains)

    def has_trained(self, trained: later_training.TrainedLines) -> bool:
        """Whether a backward pass ran in it."""
        code = self.frame.f_code
        return self.path == code.co_filename and trained.any_in(code, self.statement)


def places(body: list[ast.stmt], line: int) -> Iterator[Place]:
    """The statements that contain a line, from the outermost inwards, each in its block."""
    for index, statement in enumerate(body):
        if contains(statement, line):
            yield body, index
            for block in source_bodies.inner_blocks(statement):
                yield from places(block, line)


def calls_around(statement: ast.stmt, function: str) -> Iterator[ast.stmt]:
    """The calls of a statement that wait for the result of a function's: of `Model().fit(data)`, `_.predict(x)`.

    That result has the name `RESULT` in them.
    """
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)]
    inner = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] == function]
    if len(inner) != 1:
        return
    for call in calls:
        if call is not inner[0] and any(part is inner[0] for part in ast.walk(call)):
            result = ast.copy_location(ast.Name(id=RESULT, ctx=ast.Load()), inner[0])
            yield ast.copy_location(ast.Expr(copy.deepcopy(call, {id(inner[0]): result})), call)


def _decided(statement: ast.stmt, outcome: Callable[[ast.expr], bool | None]) -> list[ast.stmt]:
    """What runs of a condition whose `outcome` is known, through `elif`; itself where it is not."""
    if not isinstance(statement, ast.If) or (found := outcome(statement.test)) is None:
        return [statement]
    return [part for inner in (statement.body if found else statement.orelse) for part in _decided(inner, outcome)]


def _calls(statements: Sequence[ast.stmt], functions: set[str]) -> bool:
    called = (node.func for part in statements for node in ast.walk(part) if isinstance(node, ast.Call))
    return any(isinstance(name, ast.Name) and name.id in functions for name in called)


def _is_closure(node: ast.expr, names: Mapping[str, object]) -> bool:
    """Whether it is a function, or a name that nothing has yet."""
    if isinstance(node, ast.Name):
        return node.id not in names or callable(names[node.id])
    return isinstance(node, ast.Lambda)
