"""Loops that wait for values: adaptive solvers, fixed points, training until a loss is small.

Nobody computes the values, so such a loop would end at once or never. Where a `while`, or an `if` that leaves one,
asks for them, it hears what lets the loop go on, and after `MAX_ITERATIONS` times without an optimizer step what ends it.
Inside, an unknown number is a half: errors are below their limit, and steps of solvers grow.
Not followed: a value that is read before, into a number of Python's, and a `for`, which ends by itself.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from cotenant.tracing import script_location

MAX_ITERATIONS = 20
ASSUMED_NUMBER, ASSUMED_NUMBER_IN_LOOP = 1.0, 0.5
_LOOP_ENDING_NUMBERS = (1e-12, 1e12)  # whichever the loop waits for
_LOOPS = (ast.While, ast.For, ast.AsyncFor)
_TORCH_DIR = str(Path(torch.__file__).parent) + "/"
_TORCH_WRAPPERS = frozenset(
    _TORCH_DIR + name
    for name in (
        *("_compile.py", "_dynamo/eval_frame.py", "_ops.py", "_tensor.py", "overrides.py"),
        *("utils/_contextlib.py", "utils/_device.py", "utils/_python_dispatch.py", "utils/_stats.py"),
    )
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class _LoopCondition:
    """A condition in a `while`: its expression, and whether the loop goes on where it is true."""

    expression: ast.expr
    continues_if: bool


@dataclass(frozen=True, slots=True)
class _LoopLines:
    """Lines of a file: those of conditions that decide about a `while`, and those whose innermost loop is one."""

    tests: Mapping[int, _LoopCondition]
    within: frozenset[int]


class DataDependentLoops:
    """Answers where loops ask, and counts their rounds."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._hits: dict[tuple[str, int], tuple[int, int]] = {}  # (optimizer steps by then, times since)

    def truth(self, *, likely: bool) -> bool:
        """What an unknown truth value is, here; `likely`: where no loop depends on it."""
        frame = script_frame()
        if frame is None:
            return likely
        test = _parse_loops(frame.f_code.co_filename).tests.get(frame.f_lineno)
        if test is not None:
            return (self._iteration(frame) <= MAX_ITERATIONS) == (
                test.continues_if == _truth_of_condition(test.expression, frame)
            )
        if frame.f_lineno in _parse_loops(frame.f_code.co_filename).within:
            self._warn_repeated(frame)
        return likely

    def number(self) -> float:
        """What an unknown number is, here."""
        frame = script_frame()
        if frame is None or frame.f_lineno not in _parse_loops(frame.f_code.co_filename).tests:
            return assumed_number()
        rounds = self._iteration(frame)
        return ASSUMED_NUMBER_IN_LOOP if rounds <= MAX_ITERATIONS else _LOOP_ENDING_NUMBERS[rounds % 2]

    def _iteration(self, frame: FrameType) -> int:
        times = self._times(frame)
        if times > MAX_ITERATIONS:
            depends = f"runs depends on values that are not known; assumed: {MAX_ITERATIONS} times"
            self._warn("how often the loop at", frame, depends)
        return times

    def _warn_repeated(self, frame: FrameType) -> None:
        if self._times(frame) > 1:
            assumed = f"has values that are not known; assumed: numbers of {ASSUMED_NUMBER_IN_LOOP}"
            self._warn("what decides in the loop around", frame, assumed)

    def _times(self, frame: FrameType) -> int:
        """How often this place asked since the last optimizer step, or since it was told to end."""
        key, steps = (frame.f_code.co_filename, frame.f_lineno), self._recorder.steps
        before, times = self._hits.get(key, (steps, 0))
        times = times + 1 if before == steps else 1
        self._hits[key] = (steps, times if times < MAX_ITERATIONS + len(_LOOP_ENDING_NUMBERS) else 0)
        return times

    def _warn(self, begin: str, frame: FrameType, rest: str) -> None:
        self._recorder.warn(f"{begin} {Path(frame.f_code.co_filename).name}, line {frame.f_lineno}, {rest}")


def assumed_number() -> float:
    """What an unknown number is, here, by the place alone: see `truth`."""
    frame = script_frame()
    inside = frame is not None and frame.f_lineno in _parse_loops(frame.f_code.co_filename).within
    return ASSUMED_NUMBER_IN_LOOP if inside else ASSUMED_NUMBER


def script_frame(*, through: str = "") -> FrameType | None:
    """The frame that asks, neither ours nor between an operator and a mode; None where PyTorch itself does.

    `through`: a file, of which functions stand between as well.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (_is_internal(frame.f_code.co_filename) or frame.f_code.co_filename == through):
        frame = frame.f_back
    return None if frame is None or frame.f_code.co_filename.startswith(_TORCH_DIR) else frame


@functools.cache
def _is_internal(path: str) -> bool:
    return path.startswith((script_location.PACKAGE_DIR, "<")) or path in _TORCH_WRAPPERS


@functools.cache
def _parse_loops(path: str) -> _LoopLines:
    tests: dict[int, _LoopCondition] = {}
    within: set[int] = set()
    lines = linecache.getlines(path)
    if any("while" in line for line in lines):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # no source, or not what runs
            _collect_conditions(ast.parse("".join(lines)), None, tests, within)
    return _LoopLines(tests, frozenset(within))


def _collect_conditions(
    node: ast.AST, loop: ast.AST | None, tests: dict[int, _LoopCondition], within: set[int]
) -> None:
    for child in ast.iter_child_nodes(node):
        inner = loop
        if isinstance(child, _SCOPES):
            inner = None
        elif isinstance(child, _LOOPS):
            inner = child
        if isinstance(child, ast.stmt) and isinstance(inner, ast.While) and not isinstance(child, _LOOPS):
            within.update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
        elif isinstance(child, (ast.For, ast.AsyncFor)):
            within.difference_update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
        if isinstance(child, ast.While):
            _add_condition(child.test, tests, continues_if=True)
        elif isinstance(child, ast.If) and isinstance(inner, ast.While) and any(_loop_exits(child.body)):
            _add_condition(child.test, tests, continues_if=False)
        _collect_conditions(child, inner, tests, within)


def _add_condition(test: ast.expr, tests: dict[int, _LoopCondition], *, continues_if: bool) -> None:
    for line in range(test.lineno, (test.end_lineno or test.lineno) + 1):
        tests[line] = _LoopCondition(test, continues_if)


def _loop_exits(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that leave the loop around."""
    for each in body:
        if isinstance(each, (ast.Break, ast.Return)):
            yield each
        elif isinstance(each, (ast.If, ast.With)):
            yield from _loop_exits(each.body)


def _truth_of_condition(test: ast.expr, frame: FrameType) -> bool:
    """Whether the test is true where its tensor is; the first part of it that holds one decides."""
    parts = list(_conjuncts(test, True))
    return next((sign for part, sign in parts if _holds_tensor(part, frame)), parts[0][1])


def _conjuncts(test: ast.expr, sign: bool) -> Iterator[tuple[ast.expr, bool]]:
    if isinstance(test, ast.BoolOp):
        for each in test.values:
            yield from _conjuncts(each, sign)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _conjuncts(test.operand, not sign)
    else:
        yield test, sign


def _holds_tensor(part: ast.expr, frame: FrameType) -> bool:
    names = [each.id for each in ast.walk(part) if isinstance(each, ast.Name)]
    known = script_location.visible_names(frame)
    return any(isinstance(known.get(name), torch.Tensor) for name in names)
