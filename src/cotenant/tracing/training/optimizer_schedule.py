"""How many optimizer steps are enough where a script has several optimizers, which need not step equally often.

A critic may step five times before its generator does once, and a script that steps within backward has an optimizer
for each parameter. The states of all and the gradients of all are there together only after each has had a turn.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from cotenant.tracing.training import lbfgs

_MIN_GROWTH = 1.1  # times the most elements that were trained before
_EXTRA_STEPS_PER_OPTIMIZER = 5  # further steps, for each optimizer, that one which has not stepped yet is waited for


class OptimizerSchedule:
    """The optimizers of one script, and the number of steps to see."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._sizes: set[int] = set()  # of what those that stepped train
        self.made = False  # an optimizer, ever
        self._until = 0
        self._last_first = 0  # steps, of all optimizers, when the last one took its first

    def install(self) -> None:
        """Learn of each optimizer that is made."""
        original = torch.optim.Optimizer.__init__

        @functools.wraps(original)
        def init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.made = True
            self._known.add(optimizer)
            if isinstance(optimizer, torch.optim.LBFGS):
                self._steps = max(self._steps, lbfgs.steps_to_fill(optimizer))

        torch.optim.Optimizer.__init__ = init

    def stepped(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """Note that `optimizer` took the last of `steps` steps."""
        self._sizes.add(_trained_elements(optimizer))
        if optimizer not in self._stepped:
            self._stepped.add(optimizer)
            self._last_first = steps

    def is_new_training(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether `optimizer` trains another number of parameters than those that stepped; if it did, far more.

        So layers that thaw after a first epoch are seen, and it does not matter which experts a batch reached.
        """
        size = _trained_elements(optimizer)
        if optimizer in self._stepped:
            return size > _MIN_GROWTH * max(self._sizes)
        return size not in self._sizes

    def extend(self, steps: int) -> None:
        """See as many steps as before once more: after `steps`, another training begins."""
        self._steps += steps

    def continue_until(self, steps: int) -> None:
        """See `steps` in all, or more."""
        self._until = max(self._until, steps)

    @property
    def enough(self) -> int:
        """Steps after which enough was seen, as it looks now."""
        return max(self._until, self._usual)

    @property
    def _usual(self) -> int:
        others = len(self._known) - 1
        if others < 1:
            return self._steps
        if len(self._stepped) <= others:
            return self._steps + _EXTRA_STEPS_PER_OPTIMIZER * len(self._known)
        return max(self._steps, self._last_first + others)


def _trained_elements(optimizer: torch.optim.Optimizer) -> int:
    """Elements of the parameters that have a gradient; of all of them before any has, as where a closure makes them."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    with_gradient = [each for each in parameters if each.grad is not None]
    return sum(each.numel() for each in with_gradient or parameters)
