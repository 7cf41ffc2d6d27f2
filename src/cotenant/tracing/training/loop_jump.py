"""Lets a frame leave a loop when the loop's present iteration is over, as by `break`.

Between iterations nothing but the loop's own iterator is left on the frame's stack, which Python drops, and what the
iteration has opened is closed. A loop over `range(...)` is begun again with an empty range, which works for the last
statement of a function, too, or with what is left from a later iteration on; one over `tensor.split(...)` with no part.
Where a loop over parts of the data has a smaller last part, it is begun again with that. Others go on at the line
behind them. Source: Python's data model, `frame.f_lineno`: a trace function may set the line at which a frame goes on.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.training.line_watch import LINES
from cotenant.tracing.training.source_values import number_of, value_of

_RANGES = ("range", "trange", "count")
_SPLITS = ("split", "chunk")
_WITH_STEP = 3  # arguments of `range`
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Import, ast.ImportFrom)


def counts(loop: ast.stmt) -> bool:
    """Whether it is a loop over `range(...)`, maybe in `tqdm(...)`."""
    over = _iterated(loop)
    return isinstance(over, ast.Call) and ast.unparse(over.func).rpartition(".")[2] in _RANGES


def takes_parts(frame: FrameType, loop: ast.stmt) -> bool:
    """Whether it is a loop over `tensor.split(...)` or `tensor.chunk(...)`, or over a range with a step."""
    over = _iterated(loop)
    has_step = counts(loop) and isinstance(over, ast.Call) and len(over.args) == _WITH_STEP
    return has_step or bool(_split_of(frame, loop))


def _split_of(frame: FrameType, loop: ast.stmt) -> str:
    """The method of a tensor that a loop iterates over the result of, maybe in `enumerate(...)`; empty: none."""
    over = _iterated(loop)
    if isinstance(over, ast.Call) and ast.unparse(over.func) == "enumerate" and over.args:
        over = over.args[0]
    if not isinstance(over, ast.Call) or not isinstance(over.func, ast.Attribute) or over.func.attr not in _SPLITS:
        return ""
    owner = over.func.value
    is_made = isinstance(owner, ast.Call) and ast.unparse(owner).startswith("torch.")
    is_tensor = is_made or isinstance(value_of(owner, script_location.visible_names(frame)), torch.Tensor)
    return over.func.attr if is_tensor else ""


def _iterated(loop: ast.stmt) -> ast.expr | None:
    """What a `for` loop iterates over, without `tqdm(...)`."""
    over = loop.iter if isinstance(loop, ast.For) else None
    while isinstance(over, ast.Call) and ast.unparse(over.func).endswith("tqdm") and over.args:
        over = over.args[0]
    return over


@dataclass(frozen=True, slots=True)
class Jump:
    """How a frame leaves a loop.

    Attributes:
        first_lines: lines of which the first to run next begins an iteration, or ends the loop.
        lines: to go to, one after the other.
        empties: name of the function that gives an empty range at the last of them, or of the method of a tensor that
            gives no part; empty: none. With `takes_last` it gives the last part if that is smaller.
        rounds: iterations until the one to go on with, 0 to leave the loop, which counts `counter`.
    """

    frame: FrameType
    first_lines: frozenset[int]
    lines: tuple[int, ...]
    empties: str = ""
    takes_last: bool = False
    rounds: int = 0
    counter: ast.expr | None = None


def jump_behind(frame: FrameType, block: list[ast.stmt], index: int, *, takes_last: bool = False) -> Jump | None:
    """The way behind the loop at `index` of a block that `frame` runs; None if there is none.

    `takes_last`: by its last iteration, if that has a smaller part of the data.
    """
    loop = block[index]
    first_lines = {loop.lineno}
    if isinstance(loop, ast.While) and isinstance(loop.body[0], _SIMPLE):
        first_lines.add(loop.body[0].lineno)  # `while True` has no code; a `with` is reached again at its end
    emptied = _emptied(frame, loop)
    lines = (loop.lineno,) if emptied else _way_behind(frame, block, index)
    return Jump(frame, frozenset(first_lines), lines, emptied, takes_last) if lines else None


def jump_to_later(frame: FrameType, loop: ast.stmt, rounds: int) -> Jump | None:
    """The way to a later iteration of a loop over a range; None if there is none."""
    name = _emptied(frame, loop)
    if not name or name in _SPLITS or not isinstance(loop, ast.For):
        return None
    return Jump(frame, frozenset({loop.lineno}), (loop.lineno,), name, rounds=rounds, counter=loop.target)


def _emptied(frame: FrameType, loop: ast.stmt) -> str:
    """The global name by which a loop gets its range, or a tensor's method; empty: otherwise, or in several lines."""
    over = _iterated(loop)
    # The end of a header of several lines has a line of its own, and belongs to no statement.
    if not isinstance(loop, ast.For) or loop.lineno != loop.iter.end_lineno:
        return ""
    if not counts(loop) or not isinstance(over, ast.Call) or not isinstance(over.func, ast.Name):
        return _split_of(frame, loop)
    is_local = over.func.id in {*frame.f_code.co_varnames, *frame.f_code.co_cellvars, *frame.f_code.co_freevars}
    return over.func.id if not is_local else ""


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


class NextEpoch:
    """Waits for a loop that was left to begin again, in the next iteration of the loop around it.

    Attributes:
        waits: the loop was left, and has not begun again.
    """

    def __init__(self, frame: FrameType, loop: ast.stmt, begins: Callable[[], object]) -> None:
        """`begins` is called when the loop begins again."""
        self._code, self._lines = frame.f_code, range(loop.lineno, (loop.end_lineno or loop.lineno) + 1)
        self._begins = begins
        self._left_in: FrameType | None = None
        self.waits = False

    def left(self, frame: FrameType) -> None:
        """The loop is left in `frame`."""
        self.waits, self._left_in = True, frame

    def is_of(self, code: CodeType) -> bool:
        """Whether it may begin again in a frame with this code: the function with the loop is called for each epoch."""
        return code is self._code

    def returns(self, frame: FrameType) -> None:
        """A frame ends, and with it what its variables hold."""
        self._left_in = None if frame is self._left_in else self._left_in

    def line_runs(self, frame: FrameType) -> None:
        """A line of a watched frame is about to run: where the loop was left, one outside it must come before."""
        is_inside = frame.f_lineno in self._lines
        if frame is self._left_in and not is_inside:
            self._left_in = None
        elif frame is not self._left_in and is_inside:
            self.waits = False
            self._begins()


class _Leaving:
    """Takes the jumps, from the innermost outwards; a watcher of lines."""

    def __init__(self, jumps: Sequence[Jump], left: Callable[[Jump], object], epoch: NextEpoch | None) -> None:
        self._pending, self._left, self._epoch = list(jumps), left, epoch
        self._first = id(jumps[0])  # it holds a frame

    def follows(self, code: CodeType) -> bool:
        return self._epoch is not None and self._epoch.is_of(code)

    def returns(self, frame: FrameType) -> None:
        of_frame = [at for at, taken in enumerate(self._pending) if taken.frame is frame]
        if of_frame:
            del self._pending[: of_frame[-1] + 1]
        if self._epoch is not None:
            self._epoch.returns(frame)
        self._end_if_over()

    def line_runs(self, frame: FrameType) -> None:
        epoch, line = self._epoch, frame.f_lineno
        if epoch is not None and epoch.waits and epoch.is_of(frame.f_code):
            epoch.line_runs(frame)
        pending = enumerate(self._pending)
        at = next((at for at, taken in pending if taken.frame is frame and line in taken.first_lines), None)
        if at is not None:
            taken = self._pending[at]
            del self._pending[: at + 1]  # loops inside it have ended
            _take(taken)
            self._left(taken)
            if epoch is not None and id(taken) == self._first:
                epoch.left(frame)
        self._end_if_over()

    def give_up(self) -> None:
        """Take no more jumps."""
        self._pending.clear()
        LINES.remove(self)

    def _end_if_over(self) -> None:
        if not self._pending and not (self._epoch is not None and self._epoch.waits):
            LINES.remove(self)


def leave_at_end(
    jumps: Sequence[Jump], left: Callable[[Jump], object], epoch: NextEpoch | None = None
) -> Callable[[], None]:
    """Take the jumps, from the innermost outwards, when the present iterations of their loops are over.

    `left` is called with a jump that is taken. What is returned gives up those that are not. `epoch`: of the first.
    """
    leaving = _Leaving(jumps, left, epoch)
    LINES.add(leaving, [taken.frame for taken in jumps])
    return leaving.give_up


def _take(taken: Jump) -> None:
    restore = _emptying(taken) if taken.empties else None
    # Python 3.12 and newer warn of variables that have no value yet.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for line in taken.lines:
                taken.frame.f_lineno = line  # type: ignore[misc]  # typeshed does not know that trace functions may
        except ValueError:  # Python finds no way there; then the script trains on, and is ended
            if restore is not None:
                restore()


class _TensorMethods:
    """The methods of `torch.Tensor` as `f_globals` has functions."""

    def __contains__(self, name: object) -> bool:
        return name in vars(torch.Tensor)

    def get(self, name: str, _default: object) -> Any:
        return getattr(torch.Tensor, name)

    def __setitem__(self, name: str, method: Any) -> None:
        setattr(torch.Tensor, name, method)

    def pop(self, name: str, _default: object) -> None:
        """Let the class have what it inherits."""
        delattr(torch.Tensor, name)


def _emptying(taken: Jump) -> Callable[[], None]:
    """Let the next call of a function in the frame give an empty range or part, or what is left; what undoes it."""
    frame, name = taken.frame, taken.empties
    names = _TensorMethods() if name in _SPLITS else frame.f_globals
    # Not `visible_names`, which empties the locals: Python writes them back to the frame after a trace function.
    now = None if taken.counter is None else number_of(taken.counter, {**frame.f_globals, **frame.f_locals})
    original: Any = names.get(name, frame.f_builtins.get(name))
    undo: Callable[[], None] = functools.partial(names.__setitem__, name, original)
    if name not in names:
        undo = functools.partial(names.pop, name, None)

    def empty_once(*args: Any, **kwargs: Any) -> Any:
        if sys._getframe(1) is not frame:  # a function of the module, called for an argument
            return original(*args, **kwargs)
        with contextlib.suppress(KeyError):
            undo()
        if taken.rounds:
            return _rest(args, now, taken.rounds)
        parts = original(*args, **kwargs) if name in _SPLITS else _range(args)
        return parts[-1:] if taken.takes_last and _has_smaller_last(parts) else parts[:0]

    names[name] = empty_once
    return undo


def _has_smaller_last(parts: range | tuple[torch.Tensor, ...]) -> bool:
    """Whether the last of several parts is smaller: of a range with a step, the data from its last number on."""
    if isinstance(parts, range):
        return len(parts) > 1 and (parts.stop - parts.start) % parts.step != 0
    return len(parts) > 1 and parts[-1].shape != parts[0].shape


def _range(arguments: tuple[Any, ...]) -> range:
    """`range(*arguments)`; an empty one of what is not whole numbers."""
    try:
        return range(*arguments)
    except TypeError:
        return range(0)


def _rest(arguments: tuple[Any, ...], now: float | None, rounds: int) -> range:
    """What is left of `range(*arguments)`, so many rounds after it gave `now`; nothing where it does not give that."""
    whole = _range(arguments)
    try:
        return whole[whole.index(now) + rounds :]  # type: ignore[arg-type]  # what is no integer is not in it
    except ValueError:
        return range(0)
