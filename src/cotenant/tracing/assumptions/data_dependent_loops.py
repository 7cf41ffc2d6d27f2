"""Loops whose condition depends on GPU values: adaptive solvers, fixed points, training until a loss is small.

The values are not computed, so such a loop would end at once or never. Where a `while`, or an `if` that leaves one,
reads an unknown value, the answer continues the loop for `MAX_ITERATIONS` iterations without an optimizer step, and
ends it then. Inside of such a loop an unknown number is 0.5: errors are below their limits, and solver steps grow.
A method that loops again on the same object continues where it stopped, as an ODE solver does from one time of its
output to the next: it gets no further iterations. After `MAX_ENTRIES` loops of other objects, later ones get one.
A loop over `range` ends by itself. It may have 20,000 iterations, of which a power method needs few: an `if` that
breaks it does so after `STEADY_ITERATIONS` that allocated and freed the same, and left the same bytes.
Not modeled: a value that was read into a Python number before the condition; other `for` loops.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import torch

from cotenant.tracing import script_location
from cotenant.tracing.assumptions.assertions import asserted_number, asserted_truth
from cotenant.tracing.assumptions.selections import is_selecting
from cotenant.tracing.torch_location import TORCH_DIR

if TYPE_CHECKING:
    from cotenant.tracing.recorder import TraceRecorder

MAX_ITERATIONS = 20
MAX_ENTRIES = 8
STEADY_ITERATIONS = 100
_STEADY_ITERATIONS_LATER = 3  # after `MAX_ENTRIES` loops at the same line
ASSUMED_NUMBER, ASSUMED_NUMBER_IN_LOOP = 1.0, 0.5
_LOOP_ENDING_NUMBERS = (1e-12, 1e12)  # in turn: one of them ends the loop, whatever it compares
_LOOPS = (ast.While, ast.For, ast.AsyncFor)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_TORCH_WRAPPERS = frozenset(
    TORCH_DIR + name
    for name in (
        "_compile.py", "_dynamo/eval_frame.py", "_ops.py", "_tensor.py", "overrides.py", "utils/_contextlib.py",
        "utils/_device.py", "utils/_python_dispatch.py", "utils/_stats.py",
    )
)  # fmt: skip
"""Files of PyTorch whose frames may lie between a script's call and the dispatch mode."""


@dataclass(frozen=True, slots=True)
class _LoopCondition:
    """A condition that decides about a loop, and whether the loop continues where it is true.

    `is_counted`: the loop is one over `range`, else a `while`.
    """

    expression: ast.expr
    continues_if: bool
    is_counted: bool = False


@dataclass(frozen=True, slots=True)
class _LoopLines:
    """The loops of a source file.

    Attributes:
        conditions: by line.
        within: lines whose innermost loop is a `while`.
    """

    conditions: Mapping[int, _LoopCondition]
    within: frozenset[int]


@dataclass(slots=True)
class _ConditionReads:
    """Reads of a condition, or of another value in a loop, since an optimizer step.

    Attributes:
        steps: optimizer steps before them.
        count: reads since the loop was entered.
        limit: iterations until the loop is ended.
        entries: how often it was ended.
        ended_for: the object whose method it was last; None for a function, or if it is gone.
        place: of the first read of a counted loop's condition, in its code; others of the condition are not counted.
        position: where the trace was at the last read there.
        iteration: what its last iteration allocated and freed, and the bytes that lived behind it.
        steady: iterations in a row that were as the one before.
        operands: of a condition that leaves a counted loop: those that are not read yet.
    """

    steps: int
    count: int = 0
    limit: int = MAX_ITERATIONS
    entries: int = 0
    ended_for: Callable[[], object] = lambda: None
    place: int | None = None
    position: tuple[int, int] | None = None
    iteration: tuple[object, int] | None = None
    steady: int = 0
    operands: int = 0

    def enter(self, owner: object) -> None:
        """The loop begins, in a method of `owner` or in a function."""
        is_continued = owner is not None and self.ended_for() is owner
        self.limit = 0 if is_continued else MAX_ITERATIONS if self.entries < MAX_ENTRIES else 1

    def end(self, owner: object) -> None:
        """The loop was ended."""
        self.count, self.entries = 0, self.entries + 1
        try:
            self.ended_for = weakref.ref(owner)
        except TypeError:
            self.ended_for = lambda: None


class DataDependentLoops:
    """Unknown values for conditions, by the number of iterations so far."""

    def __init__(self, recorder: TraceRecorder) -> None:
        self._recorder = recorder
        self._reads: dict[tuple[str, int], _ConditionReads] = {}  # by line

    def truth(self, *, likely: bool) -> bool:
        """An unknown boolean that the script reads now; `likely`: its value where no loop depends on it."""
        frame = script_frame()
        if frame is None:
            return likely
        asserted = asserted_truth(frame.f_code.co_filename, frame.f_lineno)
        if asserted is not None:
            return asserted
        lines = _parse_loops(frame.f_code.co_filename)
        condition = lines.conditions.get(frame.f_lineno)
        if condition is not None:
            sign = _truth_of_condition(condition.expression, frame)
            if condition.is_counted:
                return sign if self._leaves_counted(frame, condition.expression) else likely
            return (not self._reads_beyond(frame, 1)) == (condition.continues_if == sign)
        if frame.f_lineno in lines.within:
            self._warn_repeated(frame)
        return likely

    def asserted(self) -> bool | None:
        """The value with which an assertion that the script makes now passes; None: it makes none."""
        frame = script_frame()
        return None if frame is None else asserted_truth(frame.f_code.co_filename, frame.f_lineno)

    def selects(self) -> bool:
        """Whether the script asks now if a mask has any true element, to go on with those; see `selections`."""
        frame = script_frame()
        return frame is not None and is_selecting(frame.f_code.co_filename, frame.f_lineno)

    def number(self) -> float:
        """An unknown number that the script reads now."""
        frame = script_frame()
        condition = None if frame is None else _parse_loops(frame.f_code.co_filename).conditions.get(frame.f_lineno)
        if frame is not None and condition is not None and condition.is_counted:
            is_left = self._leaves_counted(frame, condition.expression)
            ending = _LOOP_ENDING_NUMBERS[(self._reads_at(frame).entries - 1) % len(_LOOP_ENDING_NUMBERS)]
            return ending if is_left else asserted_number(frame, assumed_number())
        if frame is None or condition is None:
            return assumed_number() if frame is None else asserted_number(frame, assumed_number())
        beyond = self._reads_beyond(frame, len(_LOOP_ENDING_NUMBERS))
        return _LOOP_ENDING_NUMBERS[beyond % len(_LOOP_ENDING_NUMBERS)] if beyond else ASSUMED_NUMBER_IN_LOOP

    def _reads_beyond(self, frame: FrameType, needed: int) -> int:
        """Reads of the loop's condition after its last iteration; the loop has ended after `needed` of them."""
        owner = script_location.local_value(frame, "self")
        reads = self._reads_at(frame)
        if not reads.count:
            reads.enter(owner)
        reads.count += 1
        beyond = max(0, reads.count - reads.limit)
        if beyond:
            self._warn_assumed(frame, MAX_ITERATIONS)
        if beyond >= needed:
            reads.end(owner)
        return beyond

    def _leaves_counted(self, frame: FrameType, expression: ast.expr) -> bool:
        """Whether a loop over `range` is left at this read, since further iterations would allocate the same."""
        reads, recorder = self._reads_at(frame), self._recorder
        if reads.operands:
            reads.operands -= 1
            return True
        reads.place = frame.f_lasti if reads.place is None else reads.place
        # Iterations on the null GPU, which gives no events, cost little.
        if reads.place != frame.f_lasti or not hasattr(recorder, "events_since"):
            return False
        events = None if reads.position is None else recorder.events_since(reads.position, older=True)[0]
        iteration = events, sum(recorder.live_bytes.values())
        reads.steady = reads.steady + 1 if iteration == reads.iteration else 0
        reads.position, reads.iteration = recorder.position(), iteration
        if reads.steady < (STEADY_ITERATIONS if reads.entries < MAX_ENTRIES else _STEADY_ITERATIONS_LATER):
            return False
        reads.entries, reads.steady = reads.entries + 1, 0
        if isinstance(expression, ast.BoolOp) and isinstance(expression.op, ast.And):
            tensors = sum(_names_tensor(operand, frame) for operand, _ in _operands(expression, True))
            reads.operands = max(0, tensors - 1)
        self._warn_assumed(frame, STEADY_ITERATIONS)
        return True

    def _warn_assumed(self, frame: FrameType, times: int) -> None:
        depends = f"runs depends on values that are not known; assumed: {times} times"
        self._warn("how often the loop at", frame, depends)

    def _warn_repeated(self, frame: FrameType) -> None:
        reads = self._reads_at(frame)
        reads.count += 1
        if reads.count > 1:
            assumed = f"has values that are not known; assumed: numbers of {ASSUMED_NUMBER_IN_LOOP}"
            self._warn("what decides in the loop around", frame, assumed)

    def _reads_at(self, frame: FrameType) -> _ConditionReads:
        """Reads at this line since the last optimizer step."""
        line, steps = (frame.f_code.co_filename, frame.f_lineno), self._recorder.steps
        reads = self._reads.get(line)
        if reads is None or reads.steps != steps:
            reads = self._reads[line] = _ConditionReads(steps)
        return reads

    def _warn(self, begin: str, frame: FrameType, rest: str) -> None:
        self._recorder.warn(f"{begin} {Path(frame.f_code.co_filename).name}, line {frame.f_lineno}, {rest}")


def assumed_number() -> float:
    """An unknown number, by the place of the read alone, without counting iterations; `booleans` compares it."""
    frame = script_frame()
    inside = frame is not None and frame.f_lineno in _parse_loops(frame.f_code.co_filename).within
    return ASSUMED_NUMBER_IN_LOOP if inside else ASSUMED_NUMBER


def script_frame(*, through: str = "") -> FrameType | None:
    """The innermost frame of the script or a library, above our own and PyTorch's wrappers; None for PyTorch's code.

    `through`: another file whose frames are skipped.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (_is_internal(frame.f_code.co_filename) or frame.f_code.co_filename == through):
        frame = frame.f_back
    return None if frame is None or frame.f_code.co_filename.startswith(TORCH_DIR) else frame


@functools.cache
def _is_internal(path: str) -> bool:
    return path.startswith((script_location.PACKAGE_DIR, "<")) or path in _TORCH_WRAPPERS


@functools.cache
def _parse_loops(path: str) -> _LoopLines:
    conditions: dict[int, _LoopCondition] = {}
    within: set[int] = set()
    lines = linecache.getlines(path)
    if any("while" in line or "break" in line for line in lines):
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # not the source of what runs
            _collect_conditions(ast.parse("".join(lines)), None, conditions, within)
    return _LoopLines(conditions, frozenset(within))


def _collect_conditions(
    node: ast.AST, loop: ast.AST | None, conditions: dict[int, _LoopCondition], within: set[int]
) -> None:
    """Add the conditions below `node`, whose innermost loop is `loop`."""
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
            _add_condition(child.test, conditions, continues_if=True)
        elif isinstance(child, ast.If) and isinstance(inner, ast.While) and any(_loop_exits(child.body)):
            _add_condition(child.test, conditions, continues_if=False)
        elif isinstance(child, ast.If) and _is_over_range(inner) and any(isinstance(x, ast.Break) for x in child.body):
            _add_condition(child.test, conditions, continues_if=False, is_counted=True)
        _collect_conditions(child, inner, conditions, within)


def _is_over_range(loop: ast.AST | None) -> bool:
    called = loop.iter.func if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "range"


def _add_condition(
    expression: ast.expr,
    conditions: dict[int, _LoopCondition],
    *,
    continues_if: bool,
    is_counted: bool = False,
) -> None:
    for line in range(expression.lineno, (expression.end_lineno or expression.lineno) + 1):
        conditions[line] = _LoopCondition(expression, continues_if, is_counted)


def _loop_exits(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that leave the loop around them."""
    for statement in body:
        if isinstance(statement, (ast.Break, ast.Return)):
            yield statement
        elif isinstance(statement, (ast.If, ast.With)):
            yield from _loop_exits(statement.body)


def _truth_of_condition(expression: ast.expr, frame: FrameType) -> bool:
    """Whether the condition is true where its tensor is true; the first operand that names a tensor decides."""
    operands = list(_operands(expression, True))
    return next((sign for operand, sign in operands if _names_tensor(operand, frame)), operands[0][1])


def _operands(expression: ast.expr, sign: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Operands of `and`, `or` and `not`, each with whether it is not negated."""
    if isinstance(expression, ast.BoolOp):
        for value in expression.values:
            yield from _operands(value, sign)
    elif isinstance(expression, ast.UnaryOp) and isinstance(expression.op, ast.Not):
        yield from _operands(expression.operand, not sign)
    else:
        yield expression, sign


def _names_tensor(expression: ast.expr, frame: FrameType) -> bool:
    names = [node.id for node in ast.walk(expression) if isinstance(node, ast.Name)]
    values = script_location.visible_names(frame)
    return any(isinstance(values.get(name), torch.Tensor) for name in names)
