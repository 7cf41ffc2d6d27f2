"""The training loop, seen from outside: phases, modules, optimizers, and when enough was seen.

The last of `steps` optimizer steps (more if there are several optimizers: see `turns`) gets the last batch of the
epoch, which may be smaller; then the data loaders run dry, so that the epoch ends and a validation pass is seen, too.
Work that comes every few steps is waited for: see `rare`. The trace is complete when the script begins to train again,
or ends; or at once, if it has no data loader. Where a new optimizer of another size begins, such as a student's after
its teacher's, as many of its steps are seen, too.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.patches.import_hooks import when_imported
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training import later_training, lbfgs, module_to_device
from cotenant.tracing.training.conditional_work import ConditionalWork
from cotenant.tracing.training.layer_log import LayerLog
from cotenant.tracing.training.optimizer_schedule import OptimizerSchedule

_BACKWARD_PASSES = (
    20  # backward passes of a script that changes its weights itself; one that accumulates has several a step
)
_CAPTURE_WARMUP_STEPS = 11  # steps before a capture, as PyTorch's notes on CUDA graphs ask of DDP; 3 of others


class TrainingObserver:
    """Watches one script. `finish` is called once, from the main thread, and does not return."""

    def __init__(self, recorder: TraceRecorder, *, steps: int, finish: Callable[[], None]) -> None:
        self.recorder = recorder
        self.layer_log = LayerLog(recorder)
        self.turns = OptimizerSchedule(steps)
        self.rare = ConditionalWork(recorder)
        self.finish = finish
        self.draining = False
        self.ending_epoch = False  # data loaders end their epoch as soon as they can
        self.loaders = 0
        self.without_batches = ""  # why a data loader gave nothing
        self._passes = 0
        self._around_step = "forward"

    @property
    def last_step(self) -> bool:
        """Whether the next optimizer step is the last one wanted: the place for the last batch of an epoch."""
        return self.recorder.steps >= self.turns.enough - 1

    def install(self) -> None:
        """Hook into modules, autograd and optimizers, for all of the process."""
        modules = torch.nn.modules.module
        modules.register_module_forward_pre_hook(self._enter)
        modules.register_module_forward_hook(self._leave, always_call=True)
        optimizers = importlib.import_module("torch.optim.optimizer")  # the package hides the name
        optimizers.register_optimizer_step_pre_hook(self._before_step)
        optimizers.register_optimizer_step_post_hook(self._after_step)
        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self._as_backward(getattr(torch.autograd, name)))
        types = optimizers._foreach_supported_types
        if FakeTensor not in types:
            types.append(FakeTensor)
        self.turns.install()
        when_imported("fastai.optimizer", self._watch_steps)
        lbfgs.install()
        module_to_device.install(self.recorder)

    def _watch_steps(self, module: Any) -> None:
        """Optimizers of fastai are none of PyTorch's."""
        take = module.Optimizer.step

        @functools.wraps(take)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            self._before_step(optimizer, args, kwargs)
            result = take(optimizer, *args, **kwargs)
            self._after_step(optimizer, args, kwargs)
            return result

        module.Optimizer.step = step

    # -- modules ----------------------------------------------------------------------------------------------

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if self.recorder.phase == "load" and self.recorder.cuda_used:
            self.recorder.enter_phase("forward")
        if not self.recorder.in_module:
            self.rare.note()
        self.recorder.enter_module(module)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self.recorder.leave_module()
        self.layer_log.note(module, output)

    def _enough(self) -> int:
        """Steps to see; those on a stream of their own warm up for a CUDA graph, which is yet to come."""
        return self.turns.enough + (_CAPTURE_WARMUP_STEPS if max(self.recorder.streams.values(), default=0) > 0 else 0)

    # -- backward ---------------------------------------------------------------------------------------------

    def _as_backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.layer_log.close()
            self.rare.note()
            self._without_optimizer()
            before = self.recorder.enter_phase("backward")
            try:
                return function(*args, **kwargs)
            finally:
                self.recorder.enter_phase("forward" if before == "load" else before)

        return call

    def _without_optimizer(self) -> None:
        """Count backward passes where a script has no optimizer, but changes its weights itself."""
        if self.turns.made or (self.recorder.steps and self._passes <= _BACKWARD_PASSES):
            return
        self._passes += 1
        if self._passes <= _BACKWARD_PASSES:
            return
        self.recorder.steps = _BACKWARD_PASSES
        self.recorder.warn(
            f"the script has no optimizer: {_BACKWARD_PASSES} backward passes were seen instead of steps"
        )
        if not self.loaders or self.draining:
            later_training.warn_later_training(self.recorder)
            self.finish()
        self.draining = self.ending_epoch = True

    # -- optimizers -------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.draining:
            if not self.turns.is_new_training(optimizer):
                later_training.warn_later_training(self.recorder)
                self.finish()
            self.draining = self.ending_epoch = False
            self.turns.extend(self.recorder.steps)
        before = self.recorder.enter_phase("step")
        self._around_step = "backward" if before == "backward" else "forward"
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.recorder.classify(parameter, "parameter")
                self.recorder.classify(parameter.grad, "gradient")

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for state in optimizer.state.values():
            values = state.values() if isinstance(state, dict) else ()
            for value in values:
                for each in value if isinstance(value, list) else (value,):
                    self.recorder.classify(each, "optimizer state", again=False)
        self.recorder.steps += 1
        self.turns.stepped(optimizer, self.recorder.steps)
        self.recorder.enter_phase(self._around_step)
        if self.recorder.steps < self._enough() - 1 or self.draining:
            return
        more = self.rare.extra_steps()
        if more:
            self.turns.continue_until(self.recorder.steps + more)
        if self.recorder.steps >= self._enough():
            self.rare.remember()
            if not self.loaders:
                later_training.warn_later_training(self.recorder)
                self.finish()
            self.draining = self.ending_epoch = True
