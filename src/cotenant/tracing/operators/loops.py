"""Loops that wait for values: adaptive solvers, fixed points, training until a loss is small.

Nobody computes the values, so such a loop would end at once or never. Where a `while`, or an `if` that leaves one,
asks for them, it hears what lets the loop go on, and after `ROUNDS` times without an optimizer step what ends it.
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

from cotenant.tracing import places

ROUNDS = 20
NUMBER, NUMBER_IN_LOOP = 1.0, 0.5
_ENDS = (1e-12, 1e12)  # whichever the loop waits for
_LOOPS = (ast.While, ast.For, ast.AsyncFor)
_TORCH = str(Path(torch.__file__).parent) + "/"
_BETWEEN = frozenset(
    _TORCH + name
    for name in (
        *("_compile.py", "_dynamo/eval_frame.py", "_ops.py", "_tensor.py", "overrides.py"),
        *("utils/_contextlib.py", "utils/_device.py", "utils/_python_dispatch.py", "utils/_stats.py"),
    )
)
_BORDERS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class _Test:
    """A condition in a `while`: its expression, and whether the loop goes on where it is true."""

    expression: ast.expr
    goes_on_if: bool


@dataclass(frozen=True, slots=True)
class _File:
    """Lines of a file: those of conditions that decide about a `while`, and those whose innermost loop is one."""

    tests: Mapping[int, _Test]
    within: frozenset[int]


class Loops:
    """Answers where loops ask, and counts their rounds."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._asked: dict[tuple[str, int], tuple[int, int]] = {}  # (optimizer steps by then, times since)

    def truth(self, *, likely: bool) -> bool:
        """What an unknown truth value is, here; `likely`: where no loop depends on it."""
        frame = script_frame()
        if frame is None:
            return likely
        test = _read(frame.f_code.co_filename).tests.get(frame.f_lineno)
        if test is not None:
            return (self._rounds(frame) <= ROUNDS) == (test.goes_on_if == _sign(test.expression, frame))
        if frame.f_lineno in _read(frame.f_code.co_filename).within:
            self._tell_repeated(frame)
        return likely

    def number(self) -> float:
        """What an unknown number is, here."""
        frame = script_frame()
        if frame is None or frame.f_lineno not in _read(frame.f_code.co_filename).tests:
            return believed_number()
        rounds = self._rounds(frame)
        return NUMBER_IN_LOOP if rounds <= ROUNDS else _ENDS[rounds % 2]

    def _rounds(self, frame: FrameType) -> int:
        times = self._times(frame)
        if times > ROUNDS:
            depends = f"runs depends on values that are not known; assumed: {ROUNDS} times"
            self._tell("how often the loop at", frame, depends)
        return times

    def _tell_repeated(self, frame: FrameType) -> None:
        if self._times(frame) > 1:
            assumed = f"has values that are not known; assumed: numbers of {NUMBER_IN_LOOP}"
            self._tell("what decides in the loop around", frame, assumed)

    def _times(self, frame: FrameType) -> int:
        """How often this place asked since the last optimizer step, or since it was told to end."""
        key, steps = (frame.f_code.co_filename, frame.f_lineno), self._recorder.steps
        before, times = self._asked.get(key, (steps, 0))
        times = times + 1 if before == steps else 1
        self._asked[key] = (steps, times if times < ROUNDS + len(_ENDS) else 0)
        return times

    def _tell(self, begin: str, frame: FrameType, rest: str) -> None:
        self._recorder.warn(f"{begin} {Path(frame.f_code.co_filename).name}, line {frame.f_lineno}, {rest}")


def believed_number() -> float:
    """What an unknown number is, here, by the place alone: see `truth`."""
    frame = script_frame()
    inside = frame is not None and frame.f_lineno in _read(frame.f_code.co_filename).within
    return NUMBER_IN_LOOP if inside else NUMBER


def script_frame(*, through: str = "") -> FrameType | None:
    """The frame that asks, neither ours nor between an operator and a mode; None where PyTorch itself does.

    `through`: a file, of which functions stand between as well.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (_is_below(frame.f_code.co_filename) or frame.f_code.co_filename == through):
        frame = frame.f_back
    return None if frame is None or frame.f_code.co_filename.startswith(_TORCH) else frame


@functools.cache
def _is_below(path: str) -> bool:
    return path.startswith((places.PACKAGE, "<")) or path in _BETWEEN


@functools.cache
def _read(path: str) -> _File:
    tests: dict[int, _Test] = {}
    within: set[int] = set()
    lines = linecache.getlines(path)
    if any("while" in line for line in lines):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # no source, or not what runs
            _scan(ast.parse("".join(lines)), None, tests, within)
    return _File(tests, frozenset(within))


def _scan(node: ast.AST, loop: ast.AST | None, tests: dict[int, _Test], within: set[int]) -> None:
    for child in ast.iter_child_nodes(node):
        inner = loop
        if isinstance(child, _BORDERS):
            inner = None
        elif isinstance(child, _LOOPS):
            inner = child
        if isinstance(child, ast.stmt) and isinstance(inner, ast.While) and not isinstance(child, _LOOPS):
            within.update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
        elif isinstance(child, (ast.For, ast.AsyncFor)):
            within.difference_update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
        if isinstance(child, ast.While):
            _note(child.test, tests, goes_on_if=True)
        elif isinstance(child, ast.If) and isinstance(inner, ast.While) and any(_leaves(child.body)):
            _note(child.test, tests, goes_on_if=False)
        _scan(child, inner, tests, within)


def _note(test: ast.expr, tests: dict[int, _Test], *, goes_on_if: bool) -> None:
    for line in range(test.lineno, (test.end_lineno or test.lineno) + 1):
        tests[line] = _Test(test, goes_on_if)


def _leaves(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that leave the loop around."""
    for each in body:
        if isinstance(each, (ast.Break, ast.Return)):
            yield each
        elif isinstance(each, (ast.If, ast.With)):
            yield from _leaves(each.body)


def _sign(test: ast.expr, frame: FrameType) -> bool:
    """Whether the test is true where its tensor is; the first part of it that holds one decides."""
    parts = list(_parts(test, True))
    return next((sign for part, sign in parts if _holds_tensor(part, frame)), parts[0][1])


def _parts(test: ast.expr, sign: bool) -> Iterator[tuple[ast.expr, bool]]:
    if isinstance(test, ast.BoolOp):
        for each in test.values:
            yield from _parts(each, sign)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand, not sign)
    else:
        yield test, sign


def _holds_tensor(part: ast.expr, frame: FrameType) -> bool:
    names = [each.id for each in ast.walk(part) if isinstance(each, ast.Name)]
    known = places.names_in(frame)
    return any(isinstance(known.get(name), torch.Tensor) for name in names)
