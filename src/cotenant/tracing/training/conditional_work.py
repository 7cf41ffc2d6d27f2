"""Work that a training loop does only now and then, such as a regularization every 16 steps or a validation pass.

Found in the text: an `if` in a loop around the optimizer step, on the loop's counter and known numbers, which runs a
model or a backward pass, and was not entered so far. What comes soon is waited for; what comes later is told.
Not found: conditions on anything else, loops of libraries, and work behind calls that are not by name.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.training import later_training
from cotenant.tracing.training.loop_counters import Counters, when_true
from cotenant.tracing.training.model_calls import runs_model

_MAX_ROUNDS_AHEAD = 16  # rounds of the loop: lazy regularization is usual every 4 to 16
_MAX_EXTRA_STEPS = 24  # steps to wait, in all
_MAX_EXTRA_EVENTS = 400_000  # that waiting may take, by those of a step so far

_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

_own = functools.cache(script_location.is_user_file)


@dataclass(frozen=True, slots=True)
class PendingBranch:
    """An `if` that was not entered yet, and will be.

    Attributes:
        rounds: of its loop until then, 0 for the present one.
        comes_after: whether its place is after the optimizer step.
        innermost: whether its loop is the one that takes the steps.
    """

    path: str
    first_line: int
    last_line: int
    rounds: int
    comes_after: bool
    innermost: bool


class ConditionalWork:
    """Which lines of the script ran models so far, and which will."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._ran: set[tuple[str, int]] = set()
        self._waited = 0
        self._missing: list[PendingBranch] = []

    def note(self) -> None:
        """A model is called, or a backward pass begins."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if _own(frame.f_code.co_filename):
                self._ran.add((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back

    def extra_steps(self) -> int:
        """How many more optimizer steps show a branch that comes soon; call it where one was taken."""
        soon = [each for each in self._pending() if each.innermost and each.rounds <= _MAX_ROUNDS_AHEAD]
        more = max((each.rounds + each.comes_after for each in soon), default=0)
        for_each = self._recorder.event_count / max(1, self._recorder.steps)
        if self._waited + 1 > _MAX_EXTRA_STEPS or more * for_each > _MAX_EXTRA_EVENTS:
            return 0
        self._waited += bool(more)
        return more

    def remember(self) -> None:
        """Keep what is still to come, after the last step that is traced."""
        self._missing = list(self._pending())

    def warn(self) -> None:
        """Tell what was to come, and did not."""
        for each in self._missing:
            if not self._was_entered(each):
                place = f"{Path(each.path).name}, line {each.first_line}"
                self._recorder.warn(f"the work at {place}, comes after more steps than were traced, and was not seen")

    def _was_entered(self, branch: PendingBranch) -> bool:
        lines = range(branch.first_line, branch.last_line + 1)
        return any((branch.path, line) in self._ran for line in lines)

    def _pending(self) -> Iterator[PendingBranch]:
        innermost = True
        for frame in list(later_training.script_frames()):
            loops = list(_loops_around(later_training.function_body(frame), frame.f_lineno))
            names = script_location.visible_names(frame) if loops else {}
            for number, loop in enumerate(reversed(loops)):
                for each in _branches(frame, loop, names, innermost=innermost and not number):
                    if not self._was_entered(each):
                        yield each
            innermost = innermost and not loops


def _branches(
    frame: FrameType, loop: ast.stmt, names: Mapping[str, Any], *, innermost: bool
) -> Iterator[PendingBranch]:
    """Those of one loop that run a model, and whose condition will be true."""
    line, counters = frame.f_lineno, Counters.of(loop, names)
    for each in _ifs(loop):
        if each.lineno <= line <= (each.end_lineno or each.lineno):
            continue
        after = each.lineno > line
        rounds = when_true(each.test, counters, names, first=0 if after else 1)
        if rounds is not None and runs_model(each.body, names):
            last = each.body[-1].end_lineno or each.body[-1].lineno
            yield PendingBranch(frame.f_code.co_filename, each.body[0].lineno, last, rounds, after, innermost)


def _loops_around(body: list[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """From the outermost inwards."""
    for statement in body:
        if statement.lineno <= line <= (statement.end_lineno or 0):
            if isinstance(statement, _LOOPS):
                yield statement
            for name in ("body", "orelse", "finalbody"):
                yield from _loops_around(getattr(statement, name, []), line)


def _ifs(node: ast.AST) -> Iterator[ast.If]:
    """In the statements of a loop, but not those of a loop or function within."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If):
            yield child
        if not isinstance(child, (*_LOOPS, *_DEFINITIONS, ast.expr)):
            yield from _ifs(child)
