"""Work that a training loop does only sometimes, such as a regularization every 16 steps or a validation pass.

Found in the source: an `if`, or its `else`, in a loop around the optimizer step or in what that loop calls, on its
counter and known numbers, that runs a model or a backward pass and was not entered so far. So a discriminator that
starts at the tenth epoch is found in the loop over batches, also where that is in a function that gets the epoch. The
trace waits for work that comes soon, goes on at a later iteration where it can (`loop_exit`), enters what it comes to
after the traced steps (`later_branches`), and warns of other work that comes later. So are found the largest of the
sizes that a loop takes from a list by its counter, and conditions on what an iteration leaves for the next one
(`state_conditions`). Libraries: `library_validations`.

A branch that ran in early steps only counts as not entered if it would need more beside what later steps leave in
memory than all that was traced: a validation at step 0, or a regularization in the first iteration, has no states of an
optimizer beside it (`StepMemory`).

On the null GPU calls of models are not seen: hooks of modules would change what is compiled. There an `if` counts as
entered whose condition was true when a backward pass began before it or after it.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.step_memory import StepMemory
from cotenant.tracing.training import later_training, source_bodies
from cotenant.tracing.training.collected_copies import RunningLoop, collected_copies
from cotenant.tracing.training.growing_sizes import computed, growing_sizes, indexed, iterated, larger_size, unfreezes
from cotenant.tracing.training.loader_loops import loader_loop
from cotenant.tracing.training.loop_conditions import when_true
from cotenant.tracing.training.loop_counters import Counters
from cotenant.tracing.training.loop_jump import counts
from cotenant.tracing.training.loop_levels import Level, levels
from cotenant.tracing.training.loop_sizes import larger_sizes, size_of, sizes_to_come
from cotenant.tracing.training.model_calls import makes_loader, runs_model
from cotenant.tracing.training.named_conditions import NamedConditions
from cotenant.tracing.training.source_loops import conditions_in, guarded_conditions, loops_around
from cotenant.tracing.training.state_conditions import set_later

_MAX_ROUNDS_AHEAD = 16  # of the loop: lazy regularization usually comes every 4 to 16
_MAX_EXTRA_STEPS = 24  # to wait, in all
_MAX_SOUGHT = 3  # branches for which the trace goes on at a later round
_MAX_SIZES = 16  # of a loop, for each of which it does
_STEPS_OF_A_ROUND = 3  # that are traced then
_MAX_EXTRA_EVENTS = 400_000  # that waiting may take, at the number of events per step so far


@dataclass(frozen=True, slots=True)
class PendingBranch:
    """An `if` that was not entered yet and will be.

    Attributes:
        rounds: of its loop until then; 0 for the present one.
        comes_after: whether it is placed after the optimizer step.
        innermost: whether its loop is the one that takes the steps.
        loop_line: where its loop begins.
        loop_path: in which file.
        unfreezes: it is pending for the parameters that it unfreezes, and runs no model.
        size: it is no branch, but the place where the loop comes to its largest size.
        sentence: for the user, if the loop does not come to that.
        is_on_state: its condition is on what an iteration leaves for the next one, and not on a counter.
        makes_loader: it is pending for a data loader, and runs no model.
        skipped: smaller sizes that the loop comes to before `size`.
    """

    path: str
    first_line: int
    last_line: int
    rounds: int
    comes_after: bool
    innermost: bool
    loop_line: int
    loop_path: str
    unfreezes: bool = False
    size: int = 0
    sentence: str = ""
    is_on_state: bool = False
    makes_loader: bool = False
    skipped: int = 0

    @property
    def runs_model(self) -> bool:
        return not (self.unfreezes or self.size or self.is_on_state or self.makes_loader)


class ConditionalWork:
    """Which lines of the script have run models so far, and which will."""

    def __init__(self, recorder: Any, memory: StepMemory | None = None) -> None:
        """`recorder`: a `TrainingLog`. `memory`: None if `record_call` is not called for each model."""
        self._recorder = recorder
        self._memory = memory
        self._ran_in: dict[tuple[str, int], int] = {}  # the last step in which a line ran; 0 if that is not known
        self._calls: Counter[tuple[str, int]] = Counter()  # of models, by the lines that led to them
        self._largest: dict[tuple[str, int], int] = {}  # of the sizes so far, by where they are taken from a list
        self._coming: set[tuple[str, int]] = set()  # lines that run before the next backward pass
        self._waits = 0
        self._missing: list[PendingBranch] = []
        self._missing_before: list[PendingBranch] = []  # at the end of an earlier stage
        self._sought: set[tuple[str, int, int]] = set()
        self._seeking: dict[tuple[str, int], PendingBranch] = {}  # by the loops that may go on there
        self._loaders_made: set[tuple[str, int]] = set()  # branches that were come to

    def record_backward(self) -> None:
        """A backward pass begins."""
        self.record_call()
        if self._memory is not None:
            return
        self._ran_in.update(dict.fromkeys(self._coming, 0))
        self._coming.clear()
        for frame, loop, names, innermost in _loops():
            of_loop = Counters.of(loop, names)
            for branch, comes_after in _conditions(frame, loop):
                counters = of_loop.seen_from(frame.f_lineno, branch.lineno)
                if (comes_after and not innermost) or when_true(branch.test, counters, names, first=0) != 0:
                    continue
                place = frame.f_code.co_filename, branch.body[0].lineno
                if comes_after:
                    self._coming.add(place)
                else:
                    self._ran_in[place] = 0

    def record_call(self) -> None:
        """A model is called."""
        lines = [(frame.f_code.co_filename, frame.f_lineno) for frame in later_training.script_frames()]
        if self._memory is not None and lines and torch.is_grad_enabled():
            self._memory.training_begins()
        self._ran_in.update(dict.fromkeys(lines, self._memory.number if self._memory is not None else 0))
        self._calls.update(lines)

    def calls_in(self, path: str, lines: range) -> int:
        """How often models were called from these lines so far."""
        return sum(self._calls[path, line] for line in lines)

    def step_begins(self) -> None:
        """An optimizer is about to step."""
        if self._memory is not None:
            self._memory.step_begins()

    def step_ends(self) -> None:
        """An optimizer step ended."""
        if self._memory is not None:
            self._memory.step_ends()
        for frame, loop, names, _ in _loops():
            for node, _source in (*indexed(loop), *computed(loop), *iterated(loop)):
                place = frame.f_code.co_filename, node.lineno
                self._largest[place] = max(self._largest.get(place, 0), size_of(node.targets[0], names))

    def extra_steps(self) -> int:
        """How many more optimizer steps reach all branches that come soon; call it right after a step."""
        soon = [branch for branch in self._pending() if branch.innermost and branch.rounds <= _MAX_ROUNDS_AHEAD]
        extra = max((branch.rounds + branch.comes_after for branch in soon), default=0)
        events_per_step = self._recorder.event_count / max(1, self._recorder.steps)
        if self._waits + 1 > _MAX_EXTRA_STEPS or extra * events_per_step > _MAX_EXTRA_EVENTS:
            return 0
        self._waits += bool(extra)
        return extra

    def was_entered(self, path: str, lines: range) -> bool:
        """Whether these lines have run a model, with as much beside it as it will have."""
        steps = [self._ran_in[path, line] for line in lines if (path, line) in self._ran_in]
        return bool(steps) and (self._memory is None or not self._memory.would_need_more(max(steps)))

    def save_pending(self) -> None:
        """Remember what is still to come after the last step that is traced, and warn of what will grow."""
        self._missing_before.extend(branch for branch in self._missing if branch.runs_model)
        self._missing = [branch for branch in self._pending() if self._memory is not None or branch.rounds]
        self._missing += _unfreezing()
        for sentence in itertools.chain(growing_sizes(), collected_copies(_loops(), self._recorder)):
            self._recorder.warn(sentence)

    def miss(self, path: str, lines: range) -> None:
        """Warn of these lines in the end, if they were not entered by then; now, if they failed on the way."""
        if self.was_entered(path, lines):
            self._recorder.warn(later_training.work_is_later(f"{Path(path).name}, line {lines.start}"))
            return
        self._missing_before.append(
            PendingBranch(path, lines.start, lines.stop - 1, 1, False, False, lines.start, path),
        )

    def next_rounds(self) -> dict[tuple[str, int], int]:
        """Rounds until a branch that is pending, by its loop (file and line), for those that were not sought before.

        If the loop goes on there, `goes_on` is to be called. If not, a warning names the branch.
        """
        found: dict[tuple[str, int], PendingBranch] = {}
        if len(self._sought) >= _MAX_SOUGHT + _MAX_SIZES:
            return {}
        for branch in self._missing:
            if branch.rounds and (branch.path, branch.first_line, branch.size) not in self._sought:
                loop = branch.loop_path, branch.loop_line
                found[loop] = min(found.get(loop, branch), branch, key=lambda one: one.rounds)
        self._seeking = found
        return {loop: branch.rounds for loop, branch in found.items()}

    def goes_on(self, loop: tuple[str, int]) -> None:
        """A loop (file and line) goes on at the iteration that it was to be sought for."""
        branch = self._seeking[loop]
        self._sought.add((branch.path, branch.first_line, branch.size))
        if branch.makes_loader:
            self._loaders_made.add((branch.path, branch.first_line))
        if branch.skipped:
            self._recorder.warn(
                f"{Path(branch.path).name}, line {branch.first_line}, comes to {branch.skipped} other sizes before the "
                "largest one; what they leave in the caching allocator is not included"
            )

    def warn(self) -> None:
        """Warn of each branch that was pending then and was not entered since."""
        for branch in (*self._missing_before, *self._missing):
            place = f"{Path(branch.path).name}, line {branch.first_line}"
            if branch.unfreezes:
                self._recorder.warn(
                    f"parameters are unfrozen at {place}, after the traced steps; their gradients and optimizer "
                    "states, and the activations that they need, are not included"
                )
            elif not self._was_entered(branch):
                self._recorder.warn(branch.sentence or later_training.work_is_later(place))

    def names_in(self, path: str, lines: range) -> bool:
        """Whether a branch in these lines is pending, so that a warning names it."""
        return any(
            branch.path == path and branch.first_line in lines and not self._was_entered(branch)
            for branch in (*self._missing_before, *self._missing)
        )

    def _was_entered(self, branch: PendingBranch) -> bool:
        if branch.size:
            return self._largest.get((branch.path, branch.first_line), 0) >= branch.size
        if branch.is_on_state:  # its condition is false
            return False
        if branch.makes_loader:
            return (branch.path, branch.first_line) in self._loaders_made
        return self.was_entered(branch.path, range(branch.first_line, branch.last_line + 1))

    def _pending(self) -> Iterator[PendingBranch]:
        events_of_a_round = _STEPS_OF_A_ROUND * self._recorder.event_count / max(1, self._recorder.steps)
        most_sizes = min(_MAX_SIZES, int(_MAX_EXTRA_EVENTS / max(1, events_of_a_round)))
        for loop, inside, innermost in levels():
            later = (
                _branches(loop, inside, innermost), _later_sizes(loop, innermost, self._largest, most_sizes),
                () if innermost else _on_state(loop, inside[:-1]),
            )  # fmt: skip
            for branch in itertools.chain(*later):
                if not self._was_entered(branch):
                    yield branch
        yield from (last for last in _last_loader(later_training.script_frames()) if not self._was_entered(last))


def _loops() -> Iterator[RunningLoop]:
    """The loops that go on now, from the innermost outwards."""
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


def _unfreezing() -> Iterator[PendingBranch]:
    """Branches that unfreeze parameters later."""
    for frame, loop, names, innermost in _loops():
        of_loop, path = Counters.of(loop, names), frame.f_code.co_filename
        for branch, after in _conditions(frame, loop):
            rounds = when_true(branch.test, of_loop, names, first=0 if after else 1)
            if rounds is not None and unfreezes(branch, rounds):
                last = branch.body[-1].end_lineno or branch.lineno
                yield PendingBranch(
                    path, branch.lineno, last, rounds, after, innermost, loop.lineno, path, unfreezes=True
                )


def _on_state(loop: Level, inside: Sequence[Level]) -> Iterator[PendingBranch]:
    """The branches inside of a loop on what its iteration leaves for the next one."""
    path = loop.frame.f_code.co_filename
    for level in inside:
        for branch in set_later(level.node, level.names, loop.node, loop.frame.f_lineno):
            last = branch.body[-1].end_lineno or branch.lineno
            yield PendingBranch(
                level.frame.f_code.co_filename, branch.lineno, last, 1, False, False,
                getattr(loop.node, "lineno", 0), path, is_on_state=True,
            )  # fmt: skip


def _later_sizes(
    loop: Level, innermost: bool, traced: Mapping[tuple[str, int], int], most_sizes: int
) -> Iterator[PendingBranch]:
    """Where a loop takes sizes from a list by its counter, or runs over it: the round that has the next larger one.

    What each leaves in the caching allocator stays reserved. Of more than `most_sizes` it is the largest. `traced`: the
    largest so far.
    """
    frame, path = loop.frame, loop.frame.f_code.co_filename
    placed = [
        (node, larger_sizes(source, loop.counters.seen_from(frame.f_lineno, node.lineno), loop.names))
        for node, source in (*indexed(loop.node), *computed(loop.node))
    ]
    placed += [(node, sizes_to_come(node.targets[0], over, loop.names)) for node, over in iterated(loop.node)]
    for node, sizes in placed:
        larger = [size for size in sizes if math.prod(size.size) > traced.get((path, node.lineno), 0)]
        if larger:
            skipped = 0 if len(larger) <= most_sizes else len(larger) - 1
            coming = larger[skipped]
            text, size = ast.unparse(node.targets[0]), math.prod(coming.size)
            now, most = size_of(node.targets[0], loop.names), "x".join(map(str, larger[-1].size))
            yield PendingBranch(
                path, node.lineno, node.lineno, coming.rounds, node.lineno > frame.f_lineno, innermost,
                getattr(loop.node, "lineno", 0), path, size=size, skipped=skipped,
                sentence=larger_size(text, f"{Path(path).name}, line {node.lineno}", now, most),
            )  # fmt: skip


def _branches(loop: Level, inside: Sequence[Level], innermost: bool) -> Iterator[PendingBranch]:
    """The branches in a loop, and in what stands `inside` of it, that run a model and that it will come to."""
    for level in inside:
        frame, counters = level.frame, level.counters_of(loop, inside)
        if not counters.strides:
            continue
        for line, test, guards, body in _tests_and_bodies(level.node):
            if body[0].lineno <= frame.f_lineno <= (body[-1].end_lineno or frame.f_lineno):
                continue
            after = body[0].lineno > frame.f_lineno
            is_here = level.is_function or frame is loop.frame
            there = counters.seen_from(frame.f_lineno, line) if is_here else counters
            rounds = when_true(test, there, level.names, first=0 if after else 1)
            if rounds is not None and guards:
                every = ast.BoolOp(op=ast.And(), values=[*guards, test])
                rounds = when_true(every, there, level.names, first=rounds)
            if rounds is None:
                continue
            runs, place = runs_model(body, level.names), f"{Path(frame.f_code.co_filename).name}, line {body[0].lineno}"
            if runs or makes_loader(body, level.names):
                last = body[-1].end_lineno or body[-1].lineno
                if not runs:  # of several loaders, the last one is likely to have the largest batches
                    rounds = when_true(test, there, level.names, first=rounds, latest=True) or rounds
                yield PendingBranch(
                    frame.f_code.co_filename, body[0].lineno, last, rounds, after, innermost,
                    getattr(loop.node, "lineno", 0), loop.frame.f_code.co_filename,
                    makes_loader=not runs, sentence="" if runs else _loader_is_later(place),
                )  # fmt: skip


def _last_loader(frames: Iterable[FrameType]) -> Iterator[PendingBranch]:
    """The last round of a loop over a range that makes a loader in each from what it counts: batches may grow."""
    frame, loop = loader_loop(frames) or (None, None)
    if frame is None or loop is None or not counts(loop):
        return
    rounds, path = Counters.of(loop, script_location.visible_names(frame)).rounds_left, frame.f_code.co_filename
    if rounds:
        sentence = _loader_is_later(f"{Path(path).name}, line {loop.lineno}")
        yield PendingBranch(
            path,
            loop.lineno,
            loop.lineno,
            rounds,
            False,
            False,
            loop.lineno,
            path,
            makes_loader=True,
            sentence=sentence,
        )


def _loader_is_later(place: str) -> str:
    return f"the data loader made at {place}, comes only after the traced steps; its batches may be larger"


@functools.cache
def _tests_and_bodies(node: ast.AST) -> list[tuple[int, ast.expr, list[ast.expr], list[ast.stmt]]]:
    """The branches of the conditions in a loop: line, what makes it run, what it stands in; of each loop once."""
    named, found = NamedConditions.of(node), []
    for condition, around in guarded_conditions(node):
        guards = [named.in_place(guard) for guard in around]
        test = named.in_place(condition.test)
        is_chain = len(condition.orelse) == 1 and isinstance(condition.orelse[0], ast.If)  # `elif`: one of its own
        otherwise = [] if is_chain else condition.orelse
        found.append((condition.lineno, test, guards, condition.body))
        found += [(condition.lineno, ast.UnaryOp(op=ast.Not(), operand=test), guards, otherwise)] if otherwise else []
    return found
