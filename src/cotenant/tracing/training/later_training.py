"""Training that a script does after the loop at which its trace ends, found in the script's source.

Where that loop is short, such as one that warms up kernels, the trace goes on to what follows; else a warning says so.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.training.loop_counters import Counters
from cotenant.tracing.training.source_bodies import function_body
from cotenant.tracing.training.source_loops import contains
from cotenant.tracing.training.source_values import value_of

_MAX_STAGES = 8
_MODULE_METHODS = {"train", "eval"}  # not the script's functions of these names, where called on an object
TRACER = str(Path(script_location.PACKAGE_DIR, "tracing", "process", "session.py"))


class TrainedLines:
    """Lines of the script's functions in which a backward pass ran, with those of the calls that led to it.

    Another training of the script, its next stage, begins with a backward pass in another line.
    """

    def __init__(self) -> None:
        self._lines: set[tuple[CodeType, int]] = set()
        self._goes_elsewhere = False
        self._stages = 1

    def record(self) -> None:
        """A backward pass runs now."""
        lines = {(frame.f_code, frame.f_lineno) for frame in script_frames()}
        self._goes_elsewhere = not lines <= self._lines
        self._lines |= lines

    @property
    def goes_elsewhere(self) -> bool:
        """Whether the newest pass ran in a line of its own, as the first of a training does."""
        return self._goes_elsewhere

    def begins_stage(self) -> bool:
        """Whether the step that comes, after the wanted ones, begins another stage, and of the first eight."""
        self._stages += self._goes_elsewhere
        return self._goes_elsewhere and self._stages <= _MAX_STAGES

    def any_in(self, code: CodeType, statement: ast.stmt) -> bool:
        """Whether one ran in this statement of a function."""
        return any(of is code and contains(statement, line) for of, line in self._lines)


def warn_later_training(recorder: Any, trained: TrainedLines, *, by_calls: bool) -> None:
    """Warn if later statements of the script's functions on the call stack train, and have not yet.

    `by_calls`: also those that call a function which trains.
    """
    for frame, statement in _later_training(trained, by_calls=by_calls):
        place = f"{Path(frame.f_code.co_filename).name}, line {statement.lineno}"
        recorder.warn(f"the training at {place}, runs only after the traced part; its memory is not included")


def work_is_later(place: str) -> str:
    """The warning of work that is left out: what a script does every so many steps, or behind its loop."""
    return f"the work at {place}, runs only after the traced steps; its memory is not included"


def rounds_before_later_training(trained: TrainedLines, *, by_calls: bool) -> int | None:
    """Rounds left of the present loop, if the script trains again after it; None: it does not, or not known."""
    for frame, _ in _later_training(trained, by_calls=by_calls):
        present = next((part for part in function_body(frame) if contains(part, frame.f_lineno)), None)
        if isinstance(present, ast.For):
            return Counters.of(present, script_location.visible_names(frame)).rounds_left
    return None


def _later_training(trained: TrainedLines, *, by_calls: bool) -> Iterator[tuple[FrameType, ast.stmt]]:
    """The first statement after the present ones that trains and has not yet, and its frame; nothing without one."""
    names: set[str] = set()
    for frame in list(script_frames()):
        functions = _functions_seen_by(frame) if by_calls else {}
        for statement in _after(frame):
            if by_calls and isinstance(statement, ast.FunctionDef):
                names |= {statement.name} if any(trains(part, names) for part in statement.body) else set()
            called = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call) and by_calls)
            known = {
                name.id for name in called if isinstance(name, ast.Name) and _function_trains(functions.get(name.id))
            }
            if not trains(statement, names | known) or trained.any_in(frame.f_code, statement):
                continue
            if trains(statement, names | known, script_location.visible_names(frame)):
                yield frame, statement
                return
        names.add(frame.f_code.co_name)


def _functions_seen_by(frame: FrameType) -> dict[str, FunctionType]:
    visible = script_location.visible_names(frame)
    return {name: value for name, value in visible.items() if isinstance(value, FunctionType)}


def _function_trains(function: Any, depth: int = 2) -> bool:
    """Whether a function of the script has a backward pass, or calls one that has."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or not script_location.is_user_file(code.co_filename):
        return False
    if "backward" in code.co_names:
        return True
    more = (getattr(function, "__globals__", {}).get(name) for name in code.co_names)
    return depth > 0 and any(_function_trains(part, depth - 1) for part in more)


def script_frames() -> Iterator[FrameType]:
    """Frames of the script, from the innermost outwards, up to the tracing session."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != TRACER:
        if script_location.is_user_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _after(frame: FrameType) -> Iterator[ast.stmt]:
    """Statements of the frame's function after the present one, at its depth or further out."""
    body = function_body(frame)
    while body:
        line = frame.f_lineno
        at = next((index for index, part in enumerate(body) if contains(part, line)), None)
        if at is None:
            return
        yield from (statement for statement in body[at + 1 :] if statement.lineno > line)
        body = _inner_block(body[at], line)


def _inner_block(statement: ast.stmt, line: int) -> list[ast.stmt]:
    """The block of a condition or `with` that contains the line; none of a loop, whose statements run again anyway."""
    if isinstance(statement, (ast.If, ast.With, ast.Try)):
        for block in (statement.body, getattr(statement, "orelse", [])):
            if block and block[0].lineno <= line <= (block[-1].end_lineno or 0):
                return block
    return []


def trains(statement: ast.stmt, names: set[str], visible: Mapping[str, Any] | None = None) -> bool:
    """Whether it contains a backward pass, or calls one of the functions `names`, in which a step was taken.

    `visible`: values of names, by which methods of libraries are known that share a name with a function: `step`.
    """
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return False
    for node in ast.walk(statement):
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in names:
            return True
        if not isinstance(called, ast.Attribute):
            continue
        if called.attr == "backward":
            return True
        if called.attr in names - _MODULE_METHODS and not _is_of_library(called, visible or {}):
            return True
    return False


def _is_of_library(called: ast.Attribute, visible: Mapping[str, Any]) -> bool:
    """Whether a method is a library's, as that of an optimizer is; False where its object is not known."""
    owner = value_of(called.value, visible)
    method = None if owner is None else inspect.getattr_static(type(owner), called.attr, None)
    code = getattr(inspect.unwrap(method) if callable(method) else None, "__code__", None)
    return isinstance(code, CodeType) and not script_location.is_user_file(code.co_filename)
