"""Watches the training loop of a trace: phases, modules, optimizers. `training_progress` says how much is traced."""

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
from cotenant.tracing.step_memory import StepMemory
from cotenant.tracing.training.layer_log import LayerLog
from cotenant.tracing.training.line_watch import LINES
from cotenant.tracing.training.repeated_batches import RepeatedBatches
from cotenant.tracing.training.training_progress import TrainingProgress
from cotenant.tracing.training.written_views import WrittenViews


class TrainingObserver:
    """Watches one script. `finish` is called once, from the main thread, and does not return."""

    def __init__(self, recorder: TraceRecorder, *, steps: int, finish: Callable[[], None]) -> None:
        self.recorder = recorder
        self.layer_log = LayerLog(recorder)
        self.progress = TrainingProgress(recorder, steps=steps, finish=finish, memory=StepMemory(recorder.live_range))
        self.compiling = False  # the compiler calls functions, and no work of the script is done
        self.batches: RepeatedBatches | None = None
        self.written_views = WrittenViews()
        self._phase_around_step = "forward"
        self._is_training = True  # backward passes are counted
        self._in_parts = False  # an engine steps its optimizer for one part of the parameters after another

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
            *self.progress.schedule.patches(),
        ]  # fmt: skip

    # -- modules ----------------------------------------------------------------------------------------------

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        if self.recorder.phase == "load" and self.recorder.cuda_used:
            self.recorder.enter_phase("forward")
        if self.recorder.modules.is_empty:
            self.progress.model_called()
            LINES.pause()
        self.written_views.add_hooks()
        self.recorder.modules.enter(module)

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self.recorder.modules.leave()
        if self.recorder.modules.is_empty:
            LINES.resume()
        self.written_views.add_hooks()
        self.layer_log.record(module, output)

    # -- backward ---------------------------------------------------------------------------------------------

    def _as_backward(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.compiling or not self._is_training:
                return function(*args, **kwargs)
            self.written_views.add_hooks()
            self.layer_log.close_batch()
            self.progress.backward_begins()
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

    # -- optimizers -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def step_in_parts(self, optimizer: torch.optim.Optimizer, *, counts: bool) -> Iterator[None]:
        """Steps of `optimizer` within count as one; without `counts` as none: they only create its states."""
        if counts:
            self.progress.step_begins(optimizer)
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
            self.progress.step_begins(optimizer)
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

    def _count_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self.batches is not None:
            self.batches.end_step()
        self.progress.step_ends(optimizer)


def patches(context: PatchContext) -> list[Entry]:
    """The hooks of the session's observer."""
    context.observer.written_views = context.mode.written_views
    return context.observer.patches()


def _allow_foreach(supported: list[Any]) -> Callable[[], None] | None:
    if FakeTensor in supported:
        return None
    supported.append(FakeTensor)
    return lambda: supported.remove(FakeTensor)
