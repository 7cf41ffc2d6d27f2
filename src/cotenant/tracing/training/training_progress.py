"""How much of a script's training is wanted, and when its loops end: one rule for a trace and for the null GPU.

The last of `steps` optimizer steps (more with several optimizers: see `optimizer_schedule`) gets the last batch of the
epoch, which may be smaller. Then the data loaders run dry, so that the epoch ends and a validation pass is traced, too.
Work that comes every few steps is waited for: see `conditional_work`. The trace is complete when the script trains
again or ends; at once, if the script has no data loader and has no work for a GPU behind the loop (see `loop_exit`).
Where another training begins, such as that of a student after its teacher, as many of its steps are traced: an
optimizer of another size or class, or backward passes in other lines. So are the rounds of a loop that trains a new
model in each: see `training_rounds`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from cotenant.tracing import script_location
from cotenant.tracing.step_memory import StepMemory
from cotenant.tracing.training import later_training, step_growth
from cotenant.tracing.training.conditional_work import ConditionalWork
from cotenant.tracing.training.filling_deques import filling_deques
from cotenant.tracing.training.later_branches import LaterBranches
from cotenant.tracing.training.loop_exit import LoopExit
from cotenant.tracing.training.optimizer_schedule import BATCHES_AHEAD, CAPTURE_WARMUP_STEPS, OptimizerSchedule
from cotenant.tracing.training.training_rounds import TrainingRounds

_BACKWARD_PASSES = 20  # to trace of a script without an optimizer; one that accumulates has several per update
_MAX_BACKWARD_PASSES = 200  # while each leaves more than the one before, such as gradients in a list
_MAX_ROUNDS_BY_HAND = 1000
_MAX_WARMUP_ROUNDS, _MAX_WARMUP_LOOPS = 20, 2
_MAX_REPLAYS = 100  # of CUDA graphs, behind the traced steps: what a loop over them leads to
_MAX_GROWING_STEPS = 24  # more, while each leaves more than the one before: a queue of results fills in a few


class TrainingLog(Protocol):
    """What is recorded of a script: events, steps and warnings.

    Attributes:
        steps: of all optimizers, so far.
    """

    steps: int

    @property
    def event_count(self) -> int:
        """Allocations and frees so far."""

    def position(self) -> tuple[int, int]:
        """Two numbers, of which the second grows only by what happens on the GPU."""

    @property
    def live_bytes(self) -> Mapping[int, int]:
        """Allocated now, by GPU."""

    @property
    def peak_bytes(self) -> Mapping[int, int]:
        """Allocated at most, by GPU."""

    @property
    def is_aside(self) -> bool:
        """Whether the script trains on a stream of its own: steps there warm up for a CUDA graph, and it follows."""

    def warn(self, sentence: str) -> None:
        """Add a warning for the user."""


class TrainingProgress:
    """Counts steps of one script. `finish` is called once, from the main thread, and does not return.

    `per_optimizer`: every optimizer is to step `steps` times, as compiled code needs, which is ready in the third call.
    `memory`: of the steps; None if `conditional_work.record_call` is not called for each model.

    Attributes:
        draining: all wanted steps were traced.
        has_trained: they were, of the first training; the script may be in a later stage, or at a later epoch.
        ending_epoch: data loaders end their epoch as soon as they can.
        loaders: how many times a data loader began.
        epoch_end: events before the end of the traced epoch, where another one follows it that is not traced.
        empty_loader_reason: why one gave nothing, for the user.
        began_training: a backward pass began, or a model was called with gradients.
        empty_epochs: how many times one gave nothing.
        is_capturing: what the script does now goes to a CUDA graph.
    """

    def __init__(
        self,
        log: TrainingLog,
        *,
        steps: int,
        finish: Callable[[], object],
        per_optimizer: bool = False,
        memory: StepMemory | None = None,
    ) -> None:
        self.log = log
        self._finish = finish
        self.schedule = OptimizerSchedule(steps, self._optimizer_made, per_optimizer=per_optimizer)
        self.conditional_work = ConditionalWork(log, memory)
        self.rounds = TrainingRounds()
        self._growth = step_growth.StepGrowth(log)
        self._trained = later_training.TrainedLines()
        self._loop_exit = LoopExit(
            log.warn,
            self._trained,
            resume=self._trace_later,
            epoch_ended=self.epoch_ended,
            names_in=self.conditional_work.names_in,
            calls=self.conditional_work.calls_in,
        )
        self._later_branches = LaterBranches(self.conditional_work.was_entered, self.conditional_work.miss)
        self.draining = self.has_trained = False
        self.ending_epoch = False
        self.began_training = False
        self.loaders = 0
        self.epoch_end: int | None = None
        self._epoch_begin: int | None = None  # events before the newest one of a data loader
        self.empty_loader_reason, self.empty_epochs = "", 0
        self.is_capturing, self._replays = False, 0
        self._backward_passes = self._passes_before = self._blocks_before_pass = 0
        self._warmup_loops = 0  # that were traced to their end
        self._growing_steps, self._is_growing = 0, False  # that were traced beyond those wanted; whether the last grew
        self._batches_ahead = 0  # that a loader may have read before its epoch was ended
        self._steps_of_batch = self._max_steps_of_batch = 0  # since a loader gave the last batch; of each before it
        self._filling_deques: str | None = None  # what a warning says of them; None: not sought yet

    @property
    def last_step(self) -> bool:
        """Whether the next optimizer step is the last one wanted, which gets the last batch of an epoch."""
        return self.log.steps >= self.schedule.enough - 1

    def _steps_wanted(self) -> int:
        """Steps to trace; on a stream of their own steps warm up for a CUDA graph, and the capture follows."""
        return self.schedule.enough + (CAPTURE_WARMUP_STEPS if self.log.is_aside else 0)

    def model_called(self) -> None:
        """A whole model is called."""
        self.began_training = self.began_training or torch.is_grad_enabled()
        self.conditional_work.record_call()

    def backward_begins(self) -> None:
        """A backward pass of the training begins."""
        self.began_training = True
        self.conditional_work.record_backward()
        self._trained.record()
        self._count_without_optimizer()

    def _count_without_optimizer(self) -> None:
        """Count backward passes where a script has no optimizer and updates its weights itself.

        Those between which nothing happened on the GPU are of another training, on the CPU.
        """
        before, (_, self._blocks_before_pass) = self._blocks_before_pass, self.log.position()
        if self._blocks_before_pass == before > 0:
            return
        if self.schedule.has_optimizer or (self.log.steps and self._backward_passes <= _BACKWARD_PASSES):
            return
        self._backward_passes += 1
        traced, grows = self._backward_passes - 1, self._growth.pass_begins()
        if self._trained.goes_elsewhere and traced >= _BACKWARD_PASSES:  # another training
            self._passes_before = traced
        if traced - self._passes_before < _BACKWARD_PASSES:
            return
        if not self.draining:
            self.log.steps = traced
            if not self.loaders and ((grows and traced < _MAX_BACKWARD_PASSES) or self._goes_on_by_hand()):
                return
            more = ", and GPU memory still grew with each" if grows else ""
            self.log.warn(f"the script has no optimizer: {traced} backward passes were traced instead{more}")
        if not self.loaders or self.draining:
            self._end()
        self.draining = self.ending_epoch = self.has_trained = True

    def _goes_on_by_hand(self) -> bool:
        """Whether to trace the rest of a loop without an optimizer, since the script trains again after it."""
        rounds = later_training.rounds_before_later_training(self._trained, by_calls=True)
        if rounds is None or rounds > _MAX_ROUNDS_BY_HAND:
            return False
        self.schedule.extend(self.log.steps)
        return True

    def _optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        is_large = functools.partial(step_growth.is_large, allocated=self.log)
        if self.rounds.optimizer_made(optimizer, self._kept_bytes, is_large) and self.draining:
            self.rounds.begin()
            self._trace_more()

    def _kept_bytes(self) -> int:
        """Allocated beside what optimizers train and hold."""
        return sum(self.log.live_bytes.values()) - self.schedule.trained_bytes()

    def _trace_later(self, loop: tuple[str, int]) -> None:
        """A loop goes on at a later iteration."""
        self.conditional_work.goes_on(loop)
        self._trace_more()

    def _trace_more(self) -> None:
        self.draining = self.ending_epoch = False
        self.epoch_end = self._epoch_begin = None
        self._loop_exit.give_up()
        self._later_branches.end()
        self.schedule.extend(self.log.steps)

    def step_begins(self, optimizer: torch.optim.Optimizer) -> None:
        """Finish before a step of a training that was traced; go on where another one begins."""
        self.conditional_work.step_begins()
        if not self.draining:
            return
        if not self.schedule.is_new_training(optimizer) and not self._trained.begins_stage():
            if self.rounds.is_short_epoch or 0 < self._steps_of_batch < self._max_steps_of_batch:
                return
            if self._batches_ahead:
                self._batches_ahead -= 1
                return
            if self.epoch_end is None:
                self.epoch_end = self._epoch_begin
            self._end()
        self._trace_more()

    def step_ends(self, optimizer: torch.optim.Optimizer) -> None:
        """A step was taken: count it, and end the epoch after the last one that is wanted."""
        self.log.steps += 1
        self._steps_of_batch += 1
        self.rounds.stepped()
        self.schedule.stepped(optimizer, self.log.steps)
        self._growth.step_ends()
        self.conditional_work.step_ends()
        if self.log.steps < self._steps_wanted() - 1 or self.draining:
            return
        extra = self.conditional_work.extra_steps()
        if extra:
            self.schedule.continue_until(self.log.steps + extra)
        if self.log.steps == self._steps_wanted() - 1:
            self._later_branches.begin_last_step(optimizer)
        if self.log.steps >= self._steps_wanted():
            self.conditional_work.save_pending()
            if not self.loaders and self._traces_growth():
                return
            if not self.loaders and self._goes_on():
                return
            self._names_filling_deques()
            goes_on = self._loop_exit.leave(
                with_loaders=bool(self.loaders),
                rounds_loop=self.rounds.loop(),
                next_rounds=self.conditional_work.next_rounds(),
            )
            self._batches_ahead = BATCHES_AHEAD
            if not self._loop_exit.resumes:
                if not self.loaders and not goes_on and not self.is_capturing:
                    if not self._later_branches.expected():
                        self._end()
                    self._batches_ahead = 0
                self._later_branches.begin()
            self.draining = self.ending_epoch = self.has_trained = True

    def graph_replayed(self) -> None:
        """A CUDA graph was replayed. A captured step is the script's last one; what follows its replays is traced."""
        self._replays += self.draining and not self.loaders
        if self._replays > _MAX_REPLAYS:
            self._end()

    def _traces_growth(self) -> bool:
        """Whether to trace one more step: each leaves more than the one before, or the last one was the first not to.

        Where a queue is full, a step drops an entry. What comes in the next one shows that this goes on.
        """
        sentence = self._growth.warning()
        if sentence is None:
            is_first, self._is_growing = self._is_growing, False
            return is_first
        if self._growing_steps < _MAX_GROWING_STEPS:
            self._growing_steps += 1
            self._is_growing = True
            return True
        if not self._names_filling_deques():
            self.log.warn(sentence)
        return False

    def _names_filling_deques(self) -> bool:
        """Whether a warning names deques that fill with GPU tensors; they are sought once."""
        if self._filling_deques is None and self._growth.has_grown:
            self._filling_deques = filling_deques(self.log) or ""
            if self._filling_deques:
                self.log.warn(self._filling_deques)
        return bool(self._filling_deques)

    def epoch_begins(self, epoch: tuple[object, ...]) -> None:
        """A loader is about to give its first batch: those of the epoch before are used up."""
        self._batches_ahead = 0
        self._epoch_begin = self.log.event_count
        if self.rounds.epoch_begins(epoch) and self.draining:
            self.rounds.begin()
            self._trace_more()

    def batch_given(self) -> None:
        """A loader gave a batch. A script may take several steps with it: one for each of some scales."""
        self._max_steps_of_batch = max(self._max_steps_of_batch, self._steps_of_batch)
        self._steps_of_batch = 0

    def epoch_ended(self) -> None:
        """The traced epoch ends, and another one would follow."""
        self.epoch_end = self.log.event_count

    def _goes_on(self) -> bool:
        """Whether to trace the rest of a short loop, since the script trains again after it: the loop warms it up."""
        rounds = later_training.rounds_before_later_training(self._trained, by_calls=False)
        if rounds is None or rounds > _MAX_WARMUP_ROUNDS or self._warmup_loops >= _MAX_WARMUP_LOOPS:
            return False
        self._warmup_loops += 1
        self.schedule.continue_for_rounds(self.log.steps, rounds + 1)
        return True

    def warn_without_training(self) -> bool:
        """Whether a script that ended without a step was not to train: it has no optimizer, or only evaluated.

        If so, a warning says it. One that called its model with gradients beside an optimizer was to train: its own
        handler may have caught what ended that.
        """
        if self.empty_loader_reason or (self.schedule.has_optimizer and self.began_training):
            return False
        self.log.warn("the script ended without an optimizer step: the answer is for all that it ran, not for training")
        return True

    def warn_after_training(self, error: BaseException, message: str) -> None:
        """Warn of what the script raised after the traced steps: in a validation, a checkpoint, a report."""
        self._warn_untraced_rounds(error)
        if isinstance(error, StopIteration):  # from a loader whose epoch was ended
            return
        if "generator raised StopIteration" in str(error):  # PEP 479: one within a generator
            at = script_location.error_location(error)
            self.log.warn(f"not traced after training: the script reads batches without end{at and f' ({at})'}")
            return
        self.log.warn(f"not traced after training: the script raised {type(error).__name__}: {message}")

    def _warn_untraced_rounds(self, error: BaseException | None = None) -> None:
        """Say which rounds come after the script's present place, or the one that raised `error`."""
        if sentence := self.rounds.warning(error):
            self.log.warn(sentence)

    def _end(self) -> None:
        self._loop_exit.warn_unreached()
        later_training.warn_later_training(self.log, self._trained, by_calls=not self.schedule.has_optimizer)
        self._warn_untraced_rounds()
        self._later_branches.end()
        self._finish()
