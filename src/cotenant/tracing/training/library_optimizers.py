"""Optimizers of libraries that are no subclass of PyTorch's: the step hooks of `torch.optim` miss them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from cotenant.tracing.patches.registry import Entry, Patch, PatchContext, Phase
from cotenant.tracing.training.training_observer import TrainingObserver


def patches(context: PatchContext) -> list[Entry]:
    """The steps of these optimizers, which the session's observer counts as it counts PyTorch's."""
    return [
        Patch(
            target="fastai.optimizer:Optimizer.step", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_fastai_step, context.observer),
            reason="fastai's optimizers are no subclass of PyTorch's, so step hooks miss them.",
            source="fastai/optimizer.py, `Optimizer.step`",
        ),
        Patch(
            target="keras.src.optimizers.base_optimizer:BaseOptimizer.apply", phase=Phase.LIBRARIES, wraps=True,
            replacement=functools.partial(_keras_apply, context.observer),
            reason="Keras's optimizers are no subclass of PyTorch's, so step hooks miss them.",
            source="keras/src/optimizers/base_optimizer.py, `BaseOptimizer.apply`",
        ),
    ]  # fmt: skip


def _fastai_step(observer: TrainingObserver, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        observer.before_step(optimizer)
        result = original(optimizer, *args, **kwargs)
        observer.after_step(optimizer)
        return result

    return step


def _keras_apply(observer: TrainingObserver, original: Callable[..., Any]) -> Callable[..., Any]:
    optimizers: weakref.WeakKeyDictionary[Any, _KerasOptimizer] = weakref.WeakKeyDictionary()

    @functools.wraps(original)
    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        view = optimizers.setdefault(optimizer, _KerasOptimizer(optimizer))
        variables = view.trained if trainable_variables is None else list(trainable_variables)
        view.param_groups = [{"params": [variable.value for variable in variables]}]
        observer.before_step(view)
        for grad in grads:  # those that `torch.autograd.grad` gave are no attribute of the parameters
            observer.recorder.classify(grad, "gradient")
        result = original(optimizer, grads, variables)
        observer.after_step(view)
        return result

    return apply


class _KerasOptimizer:
    """One Keras optimizer with the attributes of `torch.optim.Optimizer` that the observer reads."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.param_groups: list[dict[str, Any]] = []

    @property
    def trained(self) -> list[Any]:
        """The variables that it was built for."""
        return list(getattr(self._optimizer(), "_trainable_variables", ()))

    @property
    def state(self) -> dict[str, Any]:
        """Its variables: moments, and the scalars of the schedule."""
        variables = getattr(self._optimizer(), "variables", ())
        return {"variables": {index: variable.value for index, variable in enumerate(variables)}}
