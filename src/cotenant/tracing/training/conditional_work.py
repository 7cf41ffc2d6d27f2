"""Work that a training loop does only sometimes, such as a regularization every 16 steps or a validation pass.

Found in the source: an `if` in a loop around the optimizer step, on the loop's counter and known numbers, that runs a
model or a backward pass and was not entered so far. The trace waits for work that comes soon, and warns of work that
comes later. Not found: other conditions, loops of libraries, and calls through anything but names and attributes.

On the null GPU calls of models are not seen: hooks of modules would change what is compiled. There an `if` counts as
entered whose condition was true when a backward pass began before it or after it.
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
from cotenant.tracing.training import later_training, source_bodies
from cotenant.tracing.training.growing_sizes import growing_sizes
from cotenant.tracing.training.loop_counters import Counters, when_true
from cotenant.tracing.training.model_calls import runs_model
from cotenant.tracing.training.source_loops import conditions_in, loops_around

_MAX_ROUNDS_AHEAD = 16  # of the loop: lazy regularization usually comes every 4 to 16
_MAX_EXTRA_STEPS = 24  # to wait, in all
_MAX_EXTRA_EVENTS = 400_000  # that waiting may take, at the number of events per step so far

_is_user_file = functools.cache(script_location.is_user_file)


@dataclass(frozen=True, slots=True)
class PendingBranch:
    """An `if` that was not entered yet and will be.

    Attributes:
        rounds: of its loop until then; 0 for the present one.
        comes_after: whether it is placed after the optimizer step.
        innermost: whether its loop is the one that takes the steps.
    """

    path: str
    first_line: int
    last_line: int
    rounds: int
    comes_after: bool
    innermost: bool


class ConditionalWork:
    """Which lines of the script have run models so far, and which will."""

    def __init__(self, recorder: Any, *, sees_calls: bool = True) -> None:
        """`recorder` has `warn`, `steps` and `event_count`. `sees_calls`: `record_call` is called for each model."""
        self._recorder = recorder
        self._sees_calls = sees_calls
        self._lines_run: set[tuple[str, int]] = set()
        self._coming: set[tuple[str, int]] = set()  # lines that run before the next backward pass
        self._waits = 0
        self._missing: list[PendingBranch] = []

    def record_backward(self) -> None:
        """A backward pass begins."""
        self.record_call()
        if self._sees_calls:
            return
        self._lines_run |= self._coming
        self._coming.clear()
        for frame, loop, names, innermost in _loops():
            of_loop = Counters.of(loop, names)
            for branch, comes_after in _conditions(frame, loop):
                counters = of_loop.seen_from(frame.f_lineno, branch.lineno)
                if (comes_after and not innermost) or when_true(branch.test, counters, names, first=0) != 0:
                    continue
                place = frame.f_code.co_filename, branch.body[0].lineno
                (self._coming if comes_after else self._lines_run).add(place)

    def record_call(self) -> None:
        """A model is called."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if _is_user_file(frame.f_code.co_filename):
                self._lines_run.add((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back

    def extra_steps(self) -> int:
        """How many more optimizer steps reach all branches that come soon; call it right after a step."""
        soon = [branch for branch in self._pending() if branch.innermost and branch.rounds <= _MAX_ROUNDS_AHEAD]
        extra = max((branch.rounds + branch.comes_after for branch in soon), default=0)
        events_per_step = self._recorder.event_count / max(1, self._recorder.steps)
        if self._waits + 1 > _MAX_EXTRA_STEPS or extra * events_per_step > _MAX_EXTRA_EVENTS:
            return 0
        self._waits += bool(extra)
        return extra

    def save_pending(self) -> None:
        """Remember what is still to come after the last step that is traced, and warn of sizes that will grow."""
        self._missing = [branch for branch in self._pending() if self._sees_calls or branch.rounds]
        for sentence in growing_sizes():
            self._recorder.warn(sentence)

    def warn(self) -> None:
        """Warn of each branch that was pending then and was not entered since."""
        for branch in self._missing:
            if not self._was_entered(branch):
                place = f"{Path(branch.path).name}, line {branch.first_line}"
                self._recorder.warn(later_training.work_is_later(place))

    def _was_entered(self, branch: PendingBranch) -> bool:
        lines = range(branch.first_line, branch.last_line + 1)
        return any((branch.path, line) in self._lines_run for line in lines)

    def _pending(self) -> Iterator[PendingBranch]:
        for frame, loop, names, innermost in _loops():
            for branch in _branches(frame, loop, names, innermost=innermost):
                if not self._was_entered(branch):
                    yield branch


def _loops() -> Iterator[tuple[FrameType, ast.stmt, Mapping[str, Any], bool]]:
    """The loops that go on now, from the innermost outwards: frame, loop, its names, whether it is the innermost."""
    innermost = True
    for frame in list(later_training.script_frames()):
        loops = list(loops_around(source_bodies.function_body(frame), frame.f_lineno))
        names = script_location.visible_names(frame) if loops else {}
        for loop in reversed(loops):
            yield frame, loop, names, innermost
            innermost = False


def _conditions(frame: FrameType, loop: ast.stmt) -> Iterator[tuple[ast.If, bool]]:
    """Conditions in a loop that the script is not in now, and whether they come after its present line."""
    line = frame.f_lineno
    for branch in conditions_in(loop):
        if not branch.lineno <= line <= (branch.end_lineno or branch.lineno):
            yield branch, branch.lineno > line


def _branches(
    frame: FrameType, loop: ast.stmt, names: Mapping[str, Any], *, innermost: bool
) -> Iterator[PendingBranch]:
    """The branches of one loop that run a model and whose condition will be true."""
    of_loop = Counters.of(loop, names)
    for branch, after in _conditions(frame, loop):
        counters = of_loop.seen_from(frame.f_lineno, branch.lineno)
        rounds = when_true(branch.test, counters, names, first=0 if after else 1)
        if rounds is not None and runs_model(branch.body, names):
            last = branch.body[-1].end_lineno or branch.body[-1].lineno
            yield PendingBranch(frame.f_code.co_filename, branch.body[0].lineno, last, rounds, after, innermost)
