"""Leaves a training loop that no data loader ends, so that what the script does behind it runs, too.

After the wanted steps such a loop is left as by `break`: when its iteration is over, the script goes on behind it. That
is done only where a statement there, or behind the call that the loop is in, runs a model: a sampling, a validation;
not before another training, of which `later_training` warns. A loop that is the last of its function, or of an outer
loop's body, cannot be left, nor can loops over epochs of a data loader; a warning names what comes behind them.
Source: Python's data model, `frame.f_lineno`: a trace function may set the line at which a frame goes on.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.training import later_training
from cotenant.tracing.training.loop_counters import Counters
from cotenant.tracing.training.model_calls import runs_model
from cotenant.tracing.training.source_loops import LOOPS

_RANGES = ("range", "trange")
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Import, ast.ImportFrom)

_Place = tuple[list[ast.stmt], int]
"""A block of statements, and the one in it that runs now."""


def leave_loop(
    warn: Callable[[str], object],
    trained: later_training.TrainedLines,
    *,
    with_loaders: bool,
    passes_epochs: bool = False,
) -> bool:
    """Let the script leave the loop around its optimizer step; whether it gets to work of models behind the loop.

    `with_loaders`: the script has data loaders, which end the loops over them; then only counted loops are left.
    `passes_epochs`: the loop over epochs ends by itself, since those that follow have no work.
    """
    found = _training_loop()
    if found is None or threading.current_thread() is not threading.main_thread():
        return False
    frame, places, at = found
    block, index = places[at]
    loop = block[index]
    if with_loaders and not _is_counted(loop):
        if not passes_epochs:
            _warn_behind_epochs(warn, frame, places[: at + isinstance(loop, ast.While)])
        return False
    if later_training.trains_later(trained):
        return False
    work = _work_behind(frame, places[: at + 1])
    if work is None:
        return False
    if Counters.of(loop, script_location.visible_names(frame)).rounds_left == 0:
        return True  # it ends by itself
    way = _way_behind(frame, block, index)
    if way:
        _leave(frame, loop, way)
        return True
    _warn_of(warn, work)
    return False


def _warn_behind_epochs(warn: Callable[[str], object], frame: FrameType, places: list[_Place]) -> None:
    """Name the work of a model behind the innermost loop of `places`, or of the callers: data loaders do not end it."""
    epochs = _innermost_loop(frame, places)
    if epochs is None:
        return
    frame, places = epochs
    block, index = places[-1]
    work = _work_behind(frame, places)
    if work and Counters.of(block[index], script_location.visible_names(frame)).rounds_left != 0:
        _warn_of(warn, work)


def _warn_of(warn: Callable[[str], object], work: tuple[str, int]) -> None:
    path, line = work
    warn(later_training.work_is_later(f"{Path(path).name}, line {line}"))


def _innermost_loop(frame: FrameType, places: list[_Place]) -> tuple[FrameType, list[_Place]] | None:
    """The frame of the innermost loop in `places` or in the callers of `frame`, and its places, which end with it."""
    frames = list(later_training.script_frames())
    for outer in frames[next(at for at, other in enumerate(frames) if other is frame) :]:
        if outer is not frame:
            places = list(_places(later_training.function_body(outer), outer.f_lineno))
        for at in reversed(range(len(places))):
            block, index = places[at]
            if isinstance(block[index], LOOPS):
                return outer, places[: at + 1]
    return None


def _training_loop() -> tuple[FrameType, list[_Place], int] | None:
    """The frame of the script with the innermost loop that trains now, its places, and which of them is the loop.

    A loop over optimizers, or over their parameters, only takes the steps.
    """
    inner_names: set[str] = set()
    for frame in later_training.script_frames():
        places = list(_places(later_training.function_body(frame), frame.f_lineno))
        for at, (block, index) in reversed(list(enumerate(places))):
            if isinstance(block[index], LOOPS) and later_training.trains(block[index], inner_names):
                return frame, places, at
        inner_names.add(frame.f_code.co_name)
    return None


def _places(body: list[ast.stmt], line: int) -> Iterator[_Place]:
    """The statements that contain a line, from the outermost inwards, each in its block."""
    for index, statement in enumerate(body):
        if statement.lineno <= line <= (statement.end_lineno or 0):
            yield body, index
            for name in ("body", "orelse", "finalbody"):
                yield from _places(getattr(statement, name, []), line)


def _work_behind(frame: FrameType, places: list[_Place]) -> tuple[str, int] | None:
    """File and line of the first statement behind the loop, the last of `places`, that runs a model; also in callers.

    None if a training comes before it.
    """
    frames = list(later_training.script_frames())
    at = next(place for place, other in enumerate(frames) if other is frame)
    inner_names = {other.f_code.co_name for other in frames[:at]}
    for outer in frames[at:]:
        names = script_location.visible_names(outer)
        if outer is not frame:
            places = list(_places(later_training.function_body(outer), outer.f_lineno))
        for block, index in reversed(places):
            for statement in block[index + 1 :]:
                if later_training.trains(statement, inner_names):
                    return None
                if runs_model([statement], names):
                    return outer.f_code.co_filename, statement.lineno
        inner_names.add(outer.f_code.co_name)
    return None


def _is_counted(loop: ast.stmt) -> bool:
    """Whether it is a loop over `range(...)`, maybe in `tqdm(...)`."""
    if not isinstance(loop, ast.For):
        return False
    over: ast.expr = loop.iter
    while isinstance(over, ast.Call) and ast.unparse(over.func).endswith("tqdm") and over.args:
        over = over.args[0]
    return isinstance(over, ast.Call) and ast.unparse(over.func).rpartition(".")[2] in _RANGES


def _way_behind(frame: FrameType, block: list[ast.stmt], index: int) -> tuple[int, ...]:
    """Lines to go to one after the other, to be at the statement behind the one at `index`; none if there is no way.

    Of several places in the code that belong to a line, such as the beginning and the end of a `with`, Python takes the
    one that keeps most of the stack, and would take the loop's iterator for something else. A line with one place, in
    the same block, drops the iterator first.
    """
    if index + 1 >= len(block):
        return ()
    places = Counter(_lines(frame.f_code))
    line = block[index + 1].lineno
    if places[line] == 1:
        return (line,)
    simple = next((part.lineno for part in block if isinstance(part, _SIMPLE) and places[part.lineno] == 1), None)
    return (simple, line) if simple is not None and places[line] else ()


def _lines(code: CodeType) -> Iterator[int | None]:
    """The lines of the code, in its order; one that is left and comes again twice."""
    return (line for line, _ in itertools.groupby(line for _, _, line in code.co_lines()))


def _leave(frame: FrameType, loop: ast.stmt, way: tuple[int, ...]) -> None:
    """Let `frame` go on behind `loop` when its present iteration is over.

    Only there, so that what the iteration has opened is closed: between iterations nothing but the loop's own iterator
    is left, which Python drops.
    """
    first_lines = {loop.lineno}
    if isinstance(loop, ast.While) and isinstance(loop.body[0], _SIMPLE):
        first_lines.add(loop.body[0].lineno)  # `while True` has no code; a `with` is reached again at its end
    before = sys.gettrace()

    def watch(traced: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and traced.f_lineno in first_lines:
            sys.settrace(before)
            with contextlib.suppress(ValueError):  # Python finds no way there; then the script trains on, and is ended
                for line in way:
                    traced.f_lineno = line  # type: ignore[misc]  # typeshed does not know that trace functions may
        elif event == "return":
            sys.settrace(before)
        return watch

    frame.f_trace = watch
    sys.settrace(lambda *_: None)
