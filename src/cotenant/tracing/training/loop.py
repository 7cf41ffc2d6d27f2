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

from cotenant.tracing.libraries.after_import import when_imported
from cotenant.tracing.recorder import Recorder
from cotenant.tracing.training import later, moving, quasi_newton
from cotenant.tracing.training.layers import LayerNotes
from cotenant.tracing.training.rare import Rare
from cotenant.tracing.training.turns import Turns

_BY_HAND = 20  # backward passes of a script that changes its weights itself; one that accumulates has several a step
_WARM_UP = 11  # steps before a capture, as PyTorch's notes on CUDA graphs ask of DDP; 3 of others


class Loop:
    """Watches one script. `finish` is called once, from the main thread, and does not return."""

    def __init__(self, recorder: Recorder, *, steps: int, finish: Callable[[], None]) -> None:
        self.recorder = recorder
        self.layer_notes = LayerNotes(recorder)
        self.turns = Turns(steps)
        self.rare = Rare(recorder)
        self.finish = finish
        self.draining = False
        self.hurrying = False  # data loaders end their epoch as soon as they can
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
        quasi_newton.install()
        moving.install(self.recorder)

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
        self.layer_notes.note(module, output)

    def _enough(self) -> int:
        """Steps to see; those on a stream of their own warm up for a CUDA graph, which is yet to come."""
        return self.turns.enough + (_WARM_UP if max(self.recorder.streams.values(), default=0) > 0 else 0)

    # -- backward ---------------------------------------------------------------------------------------------

    def _as_backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.layer_notes.close()
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
        if self.turns.made or (self.recorder.steps and self._passes <= _BY_HAND):
            return
        self._passes += 1
        if self._passes <= _BY_HAND:
            return
        self.recorder.steps = _BY_HAND
        self.recorder.warn(f"the script has no optimizer: {_BY_HAND} backward passes were seen instead of steps")
        if not self.loaders or self.draining:
            later.warn_of_training(self.recorder)
            self.finish()
        self.draining = self.hurrying = True

    # -- optimizers -------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.draining:
            if not self.turns.is_other_work(optimizer):
                later.warn_of_training(self.recorder)
                self.finish()
            self.draining = self.hurrying = False
            self.turns.begin_again(self.recorder.steps)
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
        more = self.rare.steps_to_wait()
        if more:
            self.turns.go_on(self.recorder.steps + more)
        if self.recorder.steps >= self._enough():
            self.rare.remember()
            if not self.loaders:
                later.warn_of_training(self.recorder)
                self.finish()
            self.draining = self.hurrying = True
