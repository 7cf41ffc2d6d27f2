"""Watches the training loop: phases, modules, optimizers, and when enough steps were traced.

The last of `steps` optimizer steps (more with several optimizers: see `optimizer_schedule`) gets the last batch of the
epoch, which may be smaller. Then the data loaders run dry, so that the epoch ends and a validation pass is traced, too.
Work that comes every few steps is waited for: see `conditional_work`. The trace is complete when the script trains
again or ends; at once, if the script has no data loader and runs no model behind the loop (see `loop_exit`). Where
another training begins, such as that of a student after its teacher, as many of its steps are traced: an optimizer of
another size, or backward passes in other lines. So are the rounds of a loop that trains a new model in each: see
`training_rounds`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _foreach_utils

from cotenant.tracing.patches.registry import Entry, HookPatch, Patch, PatchContext, Phase
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training import later_training
from cotenant.tracing.training.conditional_work import ConditionalWork
from cotenant.tracing.training.layer_log import LayerLog
from cotenant.tracing.training.loop_exit import LoopExit
from cotenant.tracing.training.optimizer_schedule import BATCHES_AHEAD, CAPTURE_WARMUP_STEPS, OptimizerSchedule
from cotenant.tracing.training.repeated_batches import RepeatedBatches
from cotenant.tracing.training.training_rounds import TrainingRounds
from cotenant.tracing.training.written_views import WrittenViews

_BACKWARD_PASSES = 20  # to trace of a script without an optimizer; one that accumulates has several per update
_MAX_WARMUP_ROUNDS, _MAX_WARMUP_LOOPS = 20, 2


class TrainingObserver:
    """Watches one script. `finish` is called once, from the main thread, and does not return."""

    def __init__(self, recorder: TraceRecorder, *, steps: int, finish: Callable[[], None]) -> None:
        self.recorder = recorder
        self.layer_log = LayerLog(recorder)
        self.schedule = OptimizerSchedule(steps, self._optimizer_made)
        self.conditional_work = ConditionalWork(recorder)
        self.rounds = TrainingRounds()
        self._trained = later_training.TrainedLines()
        self._loop_exit = LoopExit(recorder.warn, self._trained)
        self.finish = finish
        self.draining = False  # all wanted steps were traced
        self.compiling = False  # the compiler calls functions, and no work of the script is done
        self.ending_epoch = False  # data loaders end their epoch as soon as they can
        self.loaders = 0
        self.empty_loader_reason = ""
        self.batches: RepeatedBatches | None = None
        self.written_views = WrittenViews()
        self._backward_passes = 0
        self._phase_around_step = "forward"
        self._warmup_loops = 0  # that were traced to their end
        self._is_training = True  # backward passes are counted
        self._batches_ahead = 0  # that a loader may have read before its epoch was ended
        self._in_parts = False  # an engine steps its optimizer for one part of the parameters after another

    @property
    def last_step(self) -> bool:
        """Whether the next optimizer step is the last one wanted, which gets the last batch of an epoch."""
        return self.recorder.steps >= self.schedule.enough - 1

    def patches(self) -> list[Entry]:
        """Hooks into modules, autograd and optimizers."""
        modules = torch.nn.modules.module
        optimizers = importlib.import_module("torch.optim.optimizer")  # the package hides the module's name
        leave = functools.partial(modules.register_module_forward_hook, self._leave_module, always_call=True)
        module_hooks = "torch/nn/modules/module.py, `register_module_forward_hook`"
        step_hooks = "torch/optim/optimizer.py, `register_optimizer_step_post_hook`"
        return [
            HookPatch(
                target="torch.nn.modules.module:register_module_forward_pre_hook", phase=Phase.TRAINING,
                register=lambda: modules.register_module_forward_pre_hook(self._enter_module),
                reason="Events are labeled with the module that runs.", source=module_hooks,
            ),
            HookPatch(
                target="torch.nn.modules.module:register_module_forward_hook", phase=Phase.TRAINING, register=leave,
                reason="Events are labeled with the module that runs.", source=module_hooks,
            ),
            HookPatch(
                target="torch.optim.optimizer:register_optimizer_step_pre_hook", phase=Phase.TRAINING,
                register=lambda: optimizers.register_optimizer_step_pre_hook(self.before_step),
                reason="Parameters and gradients are classified, and the phase changes.", source=step_hooks,
            ),
            HookPatch(
                target="torch.optim.optimizer:register_optimizer_step_post_hook", phase=Phase.TRAINING,
                register=lambda: optimizers.register_optimizer_step_post_hook(self.after_step),
                reason="Optimizer states are classified, and steps are counted.", source=step_hooks,
            ),
            HookPatch(
                target="torch.optim.optimizer:_foreach_supported_types", phase=Phase.TRAINING,
                register=functools.partial(_allow_foreach, optimizers._foreach_supported_types),
                reason="Optimizers take the foreach implementation, as on a GPU, for listed tensor classes only.",
                source="torch/optim/optimizer.py, `_default_to_fused_or_foreach`",
            ),
            HookPatch(
                target="torch.utils._foreach_utils:_foreach_supported_types", phase=Phase.TRAINING,
                register=functools.partial(_allow_foreach, _foreach_utils._foreach_supported_types),
                reason="So does `clip_grad_norm_`, by a list of its own.",
                source="torch/utils/_foreach_utils.py, `_has_foreach_support`",
            ),
            *(
                Patch(
                    target=f"torch.autograd:{name}", phase=Phase.TRAINING, wraps=True, stacks=True,
                    replacement=functools.partial(self._as_backward, name),
                    reason="Autograd has no hook for the start and the end of a backward pass.",
                    source="torch/autograd/__init__.py, `backward`",
                )
                for name in ("backward", "grad")
            ),
            *self.schedule.patches(),
        ]  # fmt: skip

    # -- modules ----------------------------------------------------------------------------------------------

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        if self.recorder.phase == "load" and self.recorder.cuda_used:
            self.recorder.enter_phase("forward")
        if self.recorder.modules.is_empty:
            self.conditional_work.record_call()
        self.written_views.add_hooks()
        self.recorder.modules.enter(module)

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self.recorder.modules.leave()
        self.written_views.add_hooks()
        self.layer_log.record(module, output)

    def _steps_wanted(self) -> int:
        """Steps to trace; on a stream of their own steps warm up for a CUDA graph, and the capture follows."""
        warmup = CAPTURE_WARMUP_STEPS if max(self.recorder.streams.values(), default=0) > 0 else 0
        return self.schedule.enough + warmup

    # -- backward ---------------------------------------------------------------------------------------------

    def _as_backward(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.compiling or not self._is_training:
                return function(*args, **kwargs)
            self.written_views.add_hooks()
            self.layer_log.close_batch()
            self.conditional_work.record_call()
            self._trained.record()
            self._count_without_optimizer()
            before = self.recorder.enter_phase("backward")
            if self.batches is not None:
                self.batches.begin_backward(name)
            try:
                return function(*args, **kwargs)
            finally:
                self.recorder.enter_phase("forward" if before == "load" else before)
                if self.batches is not None:
                    self.batches.end_backward()

        return call

    @contextlib.contextmanager
    def not_training(self) -> Iterator[None]:
        """Backward passes within are no training: they test something."""
        before, self._is_training = self._is_training, False
        try:
            yield
        finally:
            self._is_training = before

    def _count_without_optimizer(self) -> None:
        """Count backward passes where a script has no optimizer and updates its weights itself."""
        if self.schedule.has_optimizer or (self.recorder.steps and self._backward_passes <= _BACKWARD_PASSES):
            return
        self._backward_passes += 1
        if self._backward_passes <= _BACKWARD_PASSES:
            return
        self.recorder.steps = _BACKWARD_PASSES
        self.recorder.warn(f"the script has no optimizer: {_BACKWARD_PASSES} backward passes were traced instead")
        if not self.loaders or self.draining:
            self._finish()
        self.draining = self.ending_epoch = True

    # -- optimizers -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step_in_parts(self, optimizer: torch.optim.Optimizer, *, counts: bool) -> Iterator[None]:
        """Steps of `optimizer` within count as one; without `counts` as none: they only create its states."""
        if counts:
            self._end_if_complete(optimizer)
        self._in_parts = True
        try:
            yield
        finally:
            self._in_parts = False
        if counts:
            self._count_step(optimizer)

    def before_step(self, optimizer: Any, *_: Any) -> None:
        """A step of an optimizer begins: PyTorch's, or one with its `param_groups` and `state`."""
        if self.batches is not None:
            self.batches.close()
        if not self._in_parts:
            self._end_if_complete(optimizer)
        before = self.recorder.enter_phase("step")
        self._phase_around_step = "backward" if before == "backward" else "forward"
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.recorder.classify(parameter, "parameter")
                self.recorder.classify(parameter.grad, "gradient")

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """A step of an optimizer ended; its states are classified, and steps are counted."""
        for state in optimizer.state.values():
            values = state.values() if isinstance(state, dict) else ()
            for value in values:
                for tensor in value if isinstance(value, list) else (value,):
                    self.recorder.classify(tensor, "optimizer state", again=False)
        self.recorder.enter_phase(self._phase_around_step)
        if not self._in_parts:
            self._count_step(optimizer)

    def _optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        if self.rounds.optimizer_made(optimizer) and self.draining:
            self.rounds.begin()
            self._trace_more()

    def _trace_more(self) -> None:
        self.draining = self.ending_epoch = False
        self._loop_exit.give_up()
        self.schedule.extend(self.recorder.steps)

    def _end_if_complete(self, optimizer: torch.optim.Optimizer) -> None:
        """Finish before a step of a training that was traced; go on where another one begins."""
        if not self.draining:
            return
        if not self.schedule.is_new_training(optimizer) and not self._trained.begins_stage():
            if self.rounds.is_short_epoch:
                return
            if self._batches_ahead:
                self._batches_ahead -= 1
                return
            self._finish()
        self._trace_more()

    def _count_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.recorder.steps += 1
        self.rounds.stepped()
        if self.batches is not None:
            self.batches.end_step()
        self.schedule.stepped(optimizer, self.recorder.steps)
        if self.recorder.steps < self._steps_wanted() - 1 or self.draining:
            return
        extra = self.conditional_work.extra_steps()
        if extra:
            self.schedule.continue_until(self.recorder.steps + extra)
        if self.recorder.steps >= self._steps_wanted():
            self.conditional_work.save_pending()
            if not self.loaders and self._goes_on():
                return
            goes_on = self._loop_exit.leave(with_loaders=bool(self.loaders), rounds_loop=self.rounds.loop())
            if not self.loaders and not goes_on:
                self._finish()
            self.draining = self.ending_epoch = True
            self._batches_ahead = BATCHES_AHEAD

    def epoch_begins(self) -> None:
        """A loader is about to give its first batch: those of the epoch before are used up."""
        self._batches_ahead = 0

    def _goes_on(self) -> bool:
        """Whether to trace the rest of a short loop, since the script trains again after it: the loop warms it up."""
        rounds = later_training.rounds_before_later_training(self._trained)
        if rounds is None or rounds > _MAX_WARMUP_ROUNDS or self._warmup_loops >= _MAX_WARMUP_LOOPS:
            return False
        self._warmup_loops += 1
        self.schedule.continue_for_rounds(self.recorder.steps, rounds + 1)
        return True

    def warn_untraced_rounds(self, error: BaseException | None = None) -> None:
        """Say which rounds come after the script's present place, or the one that raised `error`."""
        if sentence := self.rounds.warning(error):
            self.recorder.warn(sentence)

    def _finish(self) -> None:
        self._loop_exit.warn_unreached()
        later_training.warn_later_training(self.recorder, self._trained)
        self.warn_untraced_rounds()
        self.finish()


def patches(context: PatchContext) -> list[Entry]:
    """The hooks of the session's observer."""
    context.observer.written_views = context.mode.written_views
    return context.observer.patches()


def _allow_foreach(supported: list[Any]) -> Callable[[], None] | None:
    if FakeTensor in supported:
        return None
    supported.append(FakeTensor)
    return lambda: supported.remove(FakeTensor)
