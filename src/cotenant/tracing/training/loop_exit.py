"""Leaves the loops around the optimizer step, so that what the script does behind them runs, too.

After the wanted steps, loops over steps and over epochs are left as by `break`, when their iterations are over: the
script goes on behind them. That is done only where a statement behind them, or behind the calls that they are in, runs
a model, puts something on a GPU, or trains anew: a sampling, a test, a second stage. Loops over a data loader end by
themselves; so do loops over a few values, such as the phases of an epoch. Loops of libraries around the step, such as
that of a `Trainer`, are left for the script's work behind them. What cannot be left is named by a warning. A loop over
a range goes on at a later iteration first, if that has work of its own: see `conditional_work`. One over parts of the
data ends with a smaller last part, as a loop over a data loader does.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType, MappingProxyType

from cotenant.tracing import script_location
from cotenant.tracing.torch_location import TORCH_DIR
from cotenant.tracing.training import later_training, source_bodies
from cotenant.tracing.training.loop_counters import Counters
from cotenant.tracing.training.loop_jump import (
    Jump,
    NextEpoch,
    counts,
    jump_behind,
    jump_to_later,
    leave_at_end,
    takes_parts,
)
from cotenant.tracing.training.source_loops import LOOPS, contains, end_of_try
from cotenant.tracing.training.statements_behind import Behind, Work, calls_around, places


@dataclass(slots=True)
class _Loop:
    """A loop that goes on: the statement at `index` of a block.

    Attributes:
        behind: what the script runs between the end of this loop and that of the iteration of the loop around it.
        before: what it runs in an iteration of the loop around it before this loop begins.
    """

    frame: FrameType
    block: list[ast.stmt]
    index: int
    behind: list[Behind] = field(default_factory=list)
    before: list[Behind] = field(default_factory=list)

    @property
    def statement(self) -> ast.stmt:
        return self.block[self.index]

    def ends_by_itself(self) -> bool:
        """Whether the present iteration is its last."""
        return Counters.of(self.statement, script_location.visible_names(self.frame)).rounds_left == 0

    def repeats(self) -> bool:
        """Whether each of its iterations does the same: it counts, or it is a `while` loop.

        Not one over phases: whether it trains depends on what it counts.
        """
        loop = self.statement
        if isinstance(loop, ast.While):
            return True
        if not isinstance(loop, ast.For) or not counts(loop):
            return False
        targets = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        line = self.frame.f_lineno
        conditions = (node.test for node in ast.walk(loop) if isinstance(node, ast.If) and contains(node, line))
        return targets.isdisjoint(
            node.id for test in conditions for node in ast.walk(test) if isinstance(node, ast.Name)
        )


class LoopExit:
    """The loops of one script that are left."""

    def __init__(
        self,
        warn: Callable[[str], object],
        trained: later_training.TrainedLines,
        resume: Callable[[tuple[str, int]], object],
        epoch_ended: Callable[[], object],
        names_in: Callable[[str, range], bool],
        calls: Callable[[str, range], int],
    ) -> None:
        """`resume`: called with a loop (file and line) that goes on at a later iteration, in which the script trains.

        `epoch_ended`: called when the first loop around the innermost one is left, which would have gone on, or when
            the innermost one begins again.
        `names_in`: whether another warning names work in these lines of a file.
        `calls`: how often models were called from these lines of a file.
        """
        self._warn = warn
        self._names_in = names_in
        self._calls = calls
        self._trained = trained
        self._resume = resume
        self._epoch_ended = epoch_ended
        self.resumes = False  # a loop goes on at a later iteration
        self._sought_loop = "", 0
        self.give_up: Callable[[], None] = _nothing  # for loops that are not left yet
        self._unreached: list[tuple[int, Work, int]] = []  # work behind loops that are not left: depth, calls so far

    def leave(
        self,
        *,
        with_loaders: bool,
        rounds_loop: tuple[FrameType, ast.stmt] | None = None,
        next_rounds: Mapping[tuple[str, int], int] = MappingProxyType({}),
    ) -> bool:
        """Let the script leave the loops around its optimizer step; whether it gets to work that is behind them.

        `with_loaders`: the script has data loaders, which end the loops over them.
        `rounds_loop`: the loop that trains a new model in each iteration, with its frame; it is not left.
        `next_rounds`: of loops (file and line) with work in a later iteration, how many come before; the innermost of
        them goes on there, and the loops around it are looked at again then.
        """
        self.give_up()
        self._unreached, self.resumes = [], False
        if threading.current_thread() is not threading.main_thread():
            return False
        loops = list(_loops(rounds_loop))
        works = list(self._works(loops))
        wanted = max((depth + 1 for depth, work in enumerate(works) if work), default=0)
        if not with_loaders:
            wanted = max(wanted, _loops_before_rollouts(loops, self._trained))
            if loops and takes_parts(loops[0].frame, loops[0].statement):
                wanted = max(wanted, 1)
        if rounds_loop is not None and not with_loaders:
            wanted = len(loops)
        later = self._later_iteration(loops, next_rounds)
        jumps: dict[int, Jump] = {}
        if later is not None:
            wanted, jumps[later[0]] = later
            goes_on = loops[later[0]]
            self._sought_loop = goes_on.frame.f_code.co_filename, goes_on.statement.lineno
            self.resumes = True
        for depth, loop in enumerate(loops[:wanted]):
            may_end = (with_loaders or depth > 0) and not loop.repeats()
            if loop.ends_by_itself() or (may_end and not depth):  # the loop over a loader is the innermost one
                continue
            way = None if may_end else jump_behind(loop.frame, loop.block, loop.index, takes_last=not depth)
            if way is not None:
                jumps[depth] = way
            elif not with_loaders and not depth:
                self._warn_of(works)
                return False
            elif rounds_loop is None:
                coming = [work for work in works[depth:wanted] if work]
                self._unreached.extend((depth, work, self._calls(work.path, work.lines)) for work in coming)
        if jumps:
            depths = {id(way): depth for depth, way in jumps.items()}  # by no object that holds a frame
            ways = [jumps[depth] for depth in sorted(jumps)]
            of_epochs = next((depth for depth in sorted(jumps) if depth), None)
            epoch = None
            if of_epochs is None and len(loops) > 1 and not jumps[0].rounds:
                epoch = NextEpoch(loops[0].frame, loops[0].statement, self._epoch_ended)
            self.give_up = leave_at_end(ways, lambda way: self._left(depths[id(way)], way, of_epochs), epoch)
        return bool(wanted or later)

    def _later_iteration(
        self, loops: list[_Loop], next_rounds: Mapping[tuple[str, int], int]
    ) -> tuple[int, Jump] | None:
        """The innermost loop that is to go on at a later iteration: its depth, and the way there."""
        for depth, loop in enumerate(loops):
            rounds = next_rounds.get((loop.frame.f_code.co_filename, loop.statement.lineno))
            way = jump_to_later(loop.frame, loop.statement, rounds) if rounds and loop.repeats() else None
            if way is not None:
                return depth, way
        return None

    def warn_unreached(self) -> None:
        """Name the work behind a loop that was not left, and has not ended by itself: the script trains again."""
        self._warn_of(work for _, work, calls in self._unreached if self._calls(work.path, work.lines) == calls)

    def _left(self, depth: int, way: Jump, of_epochs: int | None) -> None:
        self._unreached = [unreached for unreached in self._unreached if unreached[0] > depth]
        if way.rounds:
            self._resume(self._sought_loop)
        elif depth == of_epochs:
            self._epoch_ended()

    def _warn_of(self, works: Iterable[Work | None]) -> None:
        first = next((work for work in works if work and not work.trains), None)
        if first is not None and not self._names_in(first.path, first.lines):
            self._warn(first.sentence())

    def _works(self, loops: list[_Loop]) -> Iterator[Work | None]:
        """The first statement behind each loop that runs a model; none behind one that has trained already."""
        for loop in loops:
            found, defined = None, set[str]()
            for part in loop.behind:
                defined |= part.defines(defined)
                if part.trains():
                    if not part.has_trained(self._trained):
                        yield found or part.work(trains=True)
                    elif found:
                        yield found
                    return
                if found is None and (part.runs_model() or part.calls(defined)):
                    found = part.work(trains=False)
            yield found


def _loops_before_rollouts(loops: Sequence[_Loop], trained: later_training.TrainedLines) -> int:
    """How many loops end before the script runs a model again to train on what it gives, as in PPO; 0 if it does not.

    Then there are states of the optimizer beside it, which there were not in the first iteration.
    """
    for depth in reversed(range(1, len(loops))):
        if not loops[depth].repeats() or loops[depth].ends_by_itself():
            continue
        before = loops[depth - 1].before
        trains = any(part.trains() or part.has_trained(trained) for part in before)
        if not trains and any(part.runs_model() for part in before):
            return depth
    return 0


def _loops(rounds_loop: tuple[FrameType, ast.stmt] | None) -> Iterator[_Loop]:
    """The innermost loop that trains now, and those around it, up to `rounds_loop`.

    A loop of the script over optimizers, or over their parameters, only takes the steps.
    """
    inner_names: set[str] = set()
    before: list[Behind] = []
    loop: _Loop | None = None
    called = called_of_library = ""
    for frame in list(_frames()):
        is_library = not script_location.is_user_file(frame.f_code.co_filename)
        if called_of_library and not is_library:
            inner_names.add(called_of_library)
        called_of_library = frame.f_code.co_name if is_library else ""
        inside: list[ast.stmt] | None = None
        running = list(places(source_bodies.function_body(frame), frame.f_lineno))
        if loop is not None and running and not is_library:
            waiting = list(calls_around(running[-1][0][running[-1][1]], called))
            loop.behind.extend(_behind(frame, frame.f_code.co_filename, waiting, inner_names))
        called = frame.f_code.co_name
        for block, index in reversed(running):
            statement = block[index]
            if isinstance(statement, LOOPS) and (loop or is_library or later_training.trains(statement, inner_names)):
                if loop is not None:
                    loop.before = before
                    yield loop
                before = []
                if rounds_loop is not None and rounds_loop == (frame, statement):
                    return
                loop = _Loop(frame, block, index)
            if loop is not None and not is_library:
                coming = [*end_of_try(statement, inside), *block[index + 1 :]]
                loop.behind.extend(_behind(frame, frame.f_code.co_filename, coming, inner_names))
                before.extend(_behind(frame, frame.f_code.co_filename, block[:index], inner_names))
            inside = block
        if loop is not None:
            for path in source_bodies.later_cells(frame.f_code):
                loop.behind.extend(_behind(frame, path, source_bodies.file_body(path), inner_names))
        if not is_library:
            inner_names.add(frame.f_code.co_name)
    if loop is not None:
        yield loop


def _behind(frame: FrameType, path: str, statements: list[ast.stmt], inner_names: set[str]) -> Iterator[Behind]:
    return (Behind(frame, path, statement, frozenset(inner_names)) for statement in statements)


def _frames() -> Iterator[FrameType]:
    """Frames of the script, and of the libraries that train for it, from the innermost outwards."""
    script = list(later_training.script_frames())
    frame: FrameType | None = sys._getframe(1)
    while script and frame is not None:
        path = frame.f_code.co_filename
        if frame is script[0]:
            yield script.pop(0)
        elif not path.startswith((script_location.PACKAGE_DIR, TORCH_DIR, "<")) and "-packages" in path:
            yield frame
        frame = frame.f_back


def _nothing() -> None:
    """What there is to give up before any loop is to be left."""
