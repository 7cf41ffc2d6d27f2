"""Loops that train a new model in every round, or one model on other data: a search over sizes, a cross-validation, an
ensemble; images or batches that grow.

A loop of models is known by where the optimizer was made: within a round of a `for` loop that goes on around the
training, but not in a branch that only the first round takes, as `if epoch == 0 and i == 0:` is. A loop of data is
known by where the data loader is made: see `loader_loops`; one over a range ends with the first round whose batches are
no larger than those before, since loaders are also made anew to shuffle.

After the traced steps of a round, loaders that the script has trained on are empty, so that its other epochs pass
without work and the next round begins; others give a few batches. Where the script's code fails without a batch, these
epochs have one, and fewer of them pass. Where an empty epoch is an error all the same, the trace ends there, with a
warning.
"""

from __future__ import annotations

import ast
import itertools
import math
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from cotenant.tracing import script_location
from cotenant.tracing.training.empty_epochs import needs_a_batch
from cotenant.tracing.training.later_training import TRACER
from cotenant.tracing.training.loader_loops import counted_values, loader_loop
from cotenant.tracing.training.loop_conditions import when_true
from cotenant.tracing.training.loop_counters import Counters
from cotenant.tracing.training.loop_jump import counts
from cotenant.tracing.training.source_bodies import function_body
from cotenant.tracing.training.source_loops import loops_around

_MAX_ROUNDS = 8
_MAX_EMPTY_EPOCHS = 200  # of one round; those of Lightning take 10 ms each
_MAX_SHORT_EPOCHS = 20  # of one batch each


_Call = tuple[int, CodeType, int]
"""A frame by its address, which no other has while it runs; its code, and a line."""


class TrainingRounds:
    """The rounds of one script."""

    def __init__(self) -> None:
        self._passing = False  # the other epochs of a round, without work
        self._rounds = 1
        self._empty_epochs = 0
        self.is_short_epoch = False  # the present epoch has one batch, and its steps are no new training
        self._made_at: tuple[_Call, ...] = ()  # where the last optimizer was made
        self._remade_at: set[tuple[tuple[CodeType, int], ...]] = set()  # where one was made again for the same model
        self._kept_bytes: list[int] = []  # on the GPU beside what optimizers train and hold, when each was made
        self._first_parameters: list[weakref.ref[Any]] = []
        self._trained_on: set[object] = set()  # epochs, by what `epoch` gives
        self._read: tuple[object, ...] = ()  # the epoch that gave the last batch
        # Not by `id`: a data set that is made in each iteration often gets the address of the one before.
        self._datasets = WeakIdKeyDictionary()
        self._needing: dict[tuple[CodeType, int], bool] = {}
        self._next_dataset = itertools.count()
        self._loader_round: tuple[object, ...] = ()  # of the loop that makes loaders, around the last epoch
        self._elements = self._elements_before = 0  # of the largest batch of this round, and of those before

    def optimizer_made(self, optimizer: Any, kept_bytes: Callable[[], int], is_large: Callable[[int], bool]) -> bool:
        """Note where an optimizer is made; whether a new round begins with it.

        One that is made at the same place for the same model, as in each epoch, begins no training, unless the round
        before it left much: weights and importances of each task that a model learns.

        `kept_bytes`: on the GPU beside what optimizers train and hold. `is_large`: whether so many more matter.
        """
        parameter = next((parameter for group in optimizer.param_groups for parameter in group["params"]), None)
        is_known = any(ref() is parameter for ref in self._first_parameters)
        place = tuple((id(frame), frame.f_code, frame.f_lineno) for frame in _frames())
        is_same_place = _lines(place) == _lines(self._made_at)
        is_again = is_known and is_same_place
        if is_again or not is_same_place:  # one for each of a model's parameters would ask as often
            self._kept_bytes = [*(self._kept_bytes if is_again else ()), kept_bytes()]
        grows = is_again and is_large(self._left_at_the_end())
        begins = (grows or not is_known) and self._rounds < _MAX_ROUNDS and self._loop() is not None
        if is_again and not grows:
            self._remade_at.add(_lines(place))
        self._made_at = place
        if parameter is not None and not is_known:
            self._first_parameters.append(weakref.ref(parameter))
        return begins

    def _left_at_the_end(self) -> int:
        """Bytes that the rounds of one model have left when they are over, if each leaves as many as the last; else 0.

        The first round leaves its last batch and results as well, of which the next ones make others.
        """
        found = self._loop()
        first, before, now = self._kept_bytes[0], *self._kept_bytes[-2:]
        if found is None or 2 * (now - before) * (len(self._kept_bytes) - 1) <= now - first:
            return 0
        left = Counters.of(found[1], script_location.visible_names(found[0])).rounds_left
        return now - first + (now - before) * (_MAX_ROUNDS if left is None else left)

    def loop(self) -> tuple[FrameType, ast.For] | None:
        """The loop around the present training whose rounds are traced, with its frame."""
        return self._model_or_loader_loop() if self._rounds < _MAX_ROUNDS else None

    def begin(self) -> None:
        """A round begins."""
        self._rounds += 1
        self._elements_before = max(self._elements_before, self._elements)
        self._elements = 0
        self._empty_epochs, self._passing, self.is_short_epoch = 0, False, False

    def epoch(self, dataset: object) -> tuple[object, ...]:
        """What an epoch that begins now is known by: the calls that begin it, and the data set with gradients on.

        Either tells the epochs of one training loop from those of its validation. Scripts make loaders and subsets anew
        in each epoch, and libraries begin the first elsewhere.
        """
        calls = tuple((frame.f_code, frame.f_lineno) for frame in _frames())
        if not torch.is_grad_enabled():
            return (calls,)
        try:
            return calls, self._datasets.setdefault(dataset, next(self._next_dataset))
        except TypeError:  # lists have no weak references; a strong one may keep tensors of the GPU alive
            return (calls,)

    def epoch_begins(self, epoch: tuple[object, ...]) -> bool:
        """Note a training epoch that begins; whether a new round begins with it, on a loader that was made for it."""
        if not torch.is_grad_enabled():
            return False
        found = self._loader_loop()
        if found is None:
            return False
        frame, loop = found
        before, self._loader_round = self._loader_round, (id(frame), loop.lineno, counted_values(frame, loop))
        is_known = self._trained_on.isdisjoint(epoch[:1]) or before == self._loader_round
        return not is_known and self._rounds < _MAX_ROUNDS

    def batch_read(self, epoch: tuple[object, ...], elements: int) -> None:
        """A loader gives a batch of this epoch, with so many elements."""
        self._read = epoch
        if torch.is_grad_enabled():
            self._elements = max(self._elements, elements)

    def stepped(self) -> None:
        """An optimizer stepped."""
        self._trained_on.update(self._read)

    def epoch_passes(self, epoch: tuple[object, ...]) -> bool:
        """Whether an epoch that begins after the traced steps is to be empty; `is_short_epoch`: but for one batch."""
        self.is_short_epoch = False
        if self._trained_on.isdisjoint(epoch) or self._rounds >= _MAX_ROUNDS or self._empty_epochs > _MAX_EMPTY_EPOCHS:
            return False
        self._passing = self._passing or self._model_or_loader_loop() is not None
        self._empty_epochs += self._passing
        readers = (frame for frame in _frames() if script_location.is_user_file(frame.f_code.co_filename))
        reader = next(readers, None) if self._passing else None
        if reader is not None and self._needs_a_batch(reader):
            self.is_short_epoch = self._empty_epochs <= _MAX_SHORT_EPOCHS
            return self.is_short_epoch
        return self._passing

    def _needs_a_batch(self, reader: FrameType) -> bool:
        """`needs_a_batch`, which reads a whole function, once for each line."""
        line = reader.f_code, reader.f_lineno
        if line not in self._needing:
            self._needing[line] = needs_a_batch(reader)
        return self._needing[line]

    def warning(self, error: BaseException | None = None) -> str | None:
        """What to say of rounds that are not traced; None if there are none. `error`: what the script raised."""
        found = self._loop(None if error is None else [frame for frame, _ in traceback.walk_tb(error.__traceback__)])
        makes = "trains a new model"
        if found is None and error is None and self._rounds >= _MAX_ROUNDS:
            found, makes = self._loader_loop(), "makes a data loader"
        if found is None:
            return None
        frame, loop = found
        names = script_location.visible_names(frame)
        if Counters.of(loop, names).rounds_left == 0 or self._rounds >= _length(loop.iter, names):
            return None
        place = f"{Path(frame.f_code.co_filename).name}, line {loop.lineno}"
        traced = "the first is" if self._rounds == 1 else f"the first {self._rounds} are"
        return f"every iteration of the loop at {place}, {makes}; only {traced} included"

    def _model_or_loader_loop(self) -> tuple[FrameType, ast.For] | None:
        return self._loop() or self._loader_loop()

    def _loader_loop(self) -> tuple[FrameType, ast.For] | None:
        """The innermost loop that makes loaders, unless it counts and no longer makes larger ones."""
        found = loader_loop(_frames())
        is_alike = self._rounds > 1 and 0 < self._elements <= self._elements_before
        return None if found is not None and is_alike and counts(found[1]) else found

    def _loop(self, frames: Sequence[FrameType] | None = None) -> tuple[FrameType, ast.For] | None:
        """The innermost loop that goes on now, and in one of whose rounds the last optimizer was made; with its frame.

        `frames`: outermost first; by default those of the present call.
        """
        if _lines(self._made_at) in self._remade_at:
            return None
        for frame in _frames() if frames is None else reversed(frames):
            lines = [line for address, code, line in self._made_at if address == id(frame) and code is frame.f_code]
            loops = [loop for loop in loops_around(function_body(frame), frame.f_lineno) if isinstance(loop, ast.For)]
            for loop in reversed(loops):
                within = [line for line in lines if loop.body[0].lineno <= line <= (loop.end_lineno or 0)]
                if any(not _is_left_out_later(loop, line, frame) for line in within):
                    return frame, loop
        return None


def _is_left_out_later(loop: ast.For, line: int, frame: FrameType) -> bool:
    """Whether a line is in a branch that no later round of the loop takes, by what the loop counts."""
    branches = (node for node in ast.walk(loop) if isinstance(node, ast.If) and _takes(node, line))
    tests = [branch.test for branch in branches if not _is_either(branch.test)]
    if not tests:
        return False
    names = script_location.visible_names(frame)
    found = Counters.of(loop, names)
    # What inner loops count has another value in the next round.
    counters = replace(found, not_known=found.assigned - found.of_loop)
    endless = replace(counters, rounds_left=None)
    return any(
        when_true(test, counters, names, first=1) is None
        # Which is also so of a test without a counter; this one would change.
        and when_true(ast.UnaryOp(op=ast.Not(), operand=test), endless, names, first=1) is not None
        for test in tests
    )


def _takes(branch: ast.If, line: int) -> bool:
    return branch.body[0].lineno <= line <= (branch.body[-1].end_lineno or 0)


def _is_either(test: ast.expr) -> bool:
    """Whether a part of a test that is not known may make it true alone."""
    return any(
        isinstance(part, (ast.Or, ast.IfExp))
        or (isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not) and isinstance(part.operand, ast.BoolOp))
        for part in ast.walk(test)
    )


def _lines(place: tuple[_Call, ...]) -> tuple[tuple[CodeType, int], ...]:
    """A place without the frames, which are new in each call of a function."""
    return tuple((code, line) for _, code, line in place)


def _length(iterated: ast.expr, names: Mapping[str, Any]) -> float:
    """Rounds of a loop over a display or a variable; infinite where they are not known."""
    if isinstance(iterated, (ast.Tuple, ast.List)) and not any(isinstance(part, ast.Starred) for part in iterated.elts):
        return len(iterated.elts)
    value = names.get(iterated.id) if isinstance(iterated, ast.Name) else None
    return len(value) if isinstance(value, (list, tuple, set, dict, range)) else math.inf


def _frames() -> Iterator[FrameType]:
    """Frames of the script and of libraries, from the innermost outwards."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != TRACER:
        if not frame.f_code.co_filename.startswith(script_location.PACKAGE_DIR):
            yield frame
        frame = frame.f_back
