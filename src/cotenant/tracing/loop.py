"""The training loop, seen from outside: phases, modules, optimizers, and when enough was seen.

The last of `steps` optimizer steps gets the last batch of the epoch, which may be smaller; then the data loaders run
dry, so that the epoch ends and a validation pass is seen, too. The trace is complete when the script begins to train
again, or ends; or at once, if it has no data loader.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing import lazy
from cotenant.tracing.layers import LayerNotes
from cotenant.tracing.recorder import Recorder


class Loop:
    """Watches one script. `finish` is called once, from the main thread, and does not return."""

    def __init__(self, recorder: Recorder, *, steps: int, finish: Callable[[], None]) -> None:
        self.recorder = recorder
        self.layer_notes = LayerNotes(recorder)
        self.steps = steps
        self.finish = finish
        self.draining = False
        self.hurrying = False  # data loaders end their epoch as soon as they can
        self.loaders = 0

    @property
    def last_step(self) -> bool:
        """Whether the next optimizer step is the last one wanted: the place for the last batch of an epoch."""
        return self.recorder.steps >= self.steps - 1

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
        torch.nn.Module._apply = _apply
        lazy.install(_become)
        _recorders.append(self.recorder)

    # -- modules ----------------------------------------------------------------------------------------------

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if self.recorder.phase == "load" and self.recorder.cuda_used:
            self.recorder.enter_phase("forward")
        self.recorder.enter_module(module)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        self.recorder.leave_module()
        self.layer_notes.note(module, output)

    # -- backward ---------------------------------------------------------------------------------------------

    def _as_backward(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.layer_notes.close()
            before = self.recorder.enter_phase("backward")
            try:
                return function(*args, **kwargs)
            finally:
                self.recorder.enter_phase("forward" if before == "load" else before)

        return call

    # -- optimizers -------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.draining:
            self.finish()
        self.recorder.enter_phase("step")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.recorder.classify(parameter, "parameter")
                self.recorder.classify(parameter.grad, "gradient")

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for state in optimizer.state.values():
            values = state.values() if isinstance(state, dict) else ()
            for value in values:
                self.recorder.classify(value, "optimizer state", again=False)
        self.recorder.steps += 1
        self.recorder.enter_phase("forward")
        if self.recorder.steps >= self.steps and not self.draining:
            if not self.loaders:
                self.finish()
            self.draining = self.hurrying = True


_recorders: list[Recorder] = []  # who is told that a tensor is a module's parameter or buffer


def _apply(self: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool = True) -> torch.nn.Module:
    """`Module._apply`, keeping every parameter the same object when it moves between real and fake.

    So an optimizer made before `.to("cuda")` and weights tied to each other stay as they are on a GPU.
    Differs from PyTorch, which puts new data into the same parameter: a real tensor cannot hold fake data.
    """
    return _apply_once(self, fn, recurse, {})


def _apply_once(
    module: torch.nn.Module, fn: Callable[[Any], Any], recurse: bool, done: dict[int, Any]
) -> torch.nn.Module:
    if recurse:
        for child in module.children():
            # A subclass that overrides `_apply` (RNNs flatten their weights) must still see the call.
            if type(child)._apply is _apply:
                _apply_once(child, fn, recurse, done)
            else:
                child._apply(fn)
    for parameter in module._parameters.values():
        if parameter is None or id(parameter) in done:
            continue
        done[id(parameter)] = parameter
        if lazy.is_lazy(parameter):
            lazy.moved(parameter, fn)
        else:
            _move(parameter, fn)
    _apply_to_buffers(module, fn, done)
    return module


def _apply_to_buffers(module: torch.nn.Module, fn: Callable[[Any], Any], done: dict[int, Any]) -> None:
    for name, buffer in module._buffers.items():
        if lazy.is_lazy(buffer):
            lazy.moved(buffer, fn)
        elif buffer is not None:
            known = done.get(id(buffer))
            if known is None:
                known = (fn(buffer), buffer)  # the old one is kept, or its id could be given to another
                done[id(buffer)] = known
            module._buffers[name] = known[0] if isinstance(known, tuple) else known
            for recorder in _recorders:
                recorder.classify(module._buffers[name], "buffer")


def _move(parameter: Any, fn: Callable[[Any], Any]) -> None:
    with torch.no_grad():
        moved = fn(parameter)
    grad = parameter.grad
    _become(parameter, moved)
    for recorder in _recorders:
        recorder.classify(parameter, "parameter")
    if grad is not None:
        with torch.no_grad():
            parameter.grad = fn(grad)


def _become(parameter: Any, moved: torch.Tensor) -> None:
    """Give `parameter` the content of `moved`, in place."""
    if moved is parameter:
        return
    if isinstance(moved, FakeTensor) == isinstance(parameter, FakeTensor):
        parameter.data = moved
        return
    wanted = parameter.requires_grad
    if isinstance(moved, FakeTensor):
        moved = moved.detach().requires_grad_(wanted)
        moved._is_param = True
    else:
        moved = torch.nn.Parameter(moved, wanted)
    _swap(parameter, moved)


def _swap(first: Any, second: Any) -> None:
    # As torch.utils.swap_tensors, without its refusal of weak references: they should follow the object.
    first.__class__, second.__class__ = second.__class__, first.__class__
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__
    torch._C._swap_tensor_impl(first, second)
