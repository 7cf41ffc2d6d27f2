"""How many optimizer steps to trace where a script has several optimizers, which need not step equally often.

A critic may step five times before its generator does once, and a script that steps within backward has one optimizer
per parameter. All states and gradients exist at once only after every optimizer has stepped, and what an iteration
leaves to the next one, only beside a second iteration of whole batches.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, Phase
from cotenant.tracing.training import lbfgs

CAPTURE_WARMUP_STEPS = 11
"""Steps before a CUDA graph is captured: docs/source/notes/cuda.rst requires 11 with DDP, else 3."""
DRAIN_BATCHES = 2
"""Batches that a data loader still gives after the traced steps: enough for a validation pass."""
BATCHES_AHEAD = 1
"""Batches that are read before the epoch was ended. Source: accelerate/data_loader.py, `DataLoaderShard.__iter__`."""
_MAX_STEPS_FACTOR = 4
"""An optimizer may do so many times the wanted steps until the others have done theirs."""
_ROUNDS, _MAX_IN_TURN = 2, 4
"""So many rounds of a few optimizers that step in turn show what an iteration frees of the one before. Of more
optimizers, as where every parameter has one, each steps once."""
_MAX_PERIOD = 8
"""A round of at most so many steps, as where a critic steps five times before its generator does, is traced twice."""
_MIN_GROWTH = 1.1  # factor on the largest number of elements trained so far
_EXTRA_STEPS_PER_OPTIMIZER = 5  # steps to wait for an optimizer that has not stepped yet


class OptimizerSchedule:
    """The optimizers of one script, and the number of steps to trace."""

    def __init__(
        self, steps: int, made: Callable[[torch.optim.Optimizer], None], *, per_optimizer: bool = False
    ) -> None:
        """`made` is called with every optimizer of the script. `per_optimizer`: every one is to step `steps` times."""
        self._steps = self._of_one_training = steps
        self._made = made
        self._per_optimizer = per_optimizer
        self._counts: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._count = 0
        self._known: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._sizes: set[int] = set()  # elements that each optimizer which stepped trains
        self._classes: set[type] = set()  # of the same
        self.has_optimizer = False
        self._until = 0
        self._last_first_step = 0  # number of the step that was the first of the latest optimizer

    def patches(self) -> list[Patch]:
        """The constructor of optimizers, which registers each here."""
        return [
            Patch(
                target="torch.optim:Optimizer.__init__",
                phase=Phase.TRAINING,
                replacement=self._registering,
                wraps=True,
                reason="PyTorch has hooks for the step of an optimizer, but none for its construction.",
                source="torch/optim/optimizer.py, `register_optimizer_step_pre_hook`",
            )
        ]

    def _registering(self, original: Any) -> Any:
        @functools.wraps(original)
        def init(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.has_optimizer = True
            self._known.add(optimizer)
            if isinstance(optimizer, torch.optim.LBFGS):
                self._of_one_training = max(self._of_one_training, lbfgs.steps_to_fill(optimizer))
                self._steps = max(self._steps, self._of_one_training)
            self._made(optimizer)

        return init

    def trained_bytes(self) -> int:
        """Bytes of the parameters of all optimizers, their gradients and states, on GPUs."""
        storages: dict[int, int] = {}
        for optimizer in self._known:
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            states = [value for state in optimizer.state.values() for value in getattr(state, "values", tuple)()]
            for tensor in (*parameters, *(parameter.grad for parameter in parameters), *states):
                if isinstance(tensor, torch.Tensor) and not torch.nn.parameter.is_lazy(tensor) and tensor.is_cuda:
                    storage = tensor.untyped_storage()
                    storages[storage._cdata] = storage.nbytes()
        return sum(storages.values())

    def stepped(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """Record that `optimizer` took the last of `steps` steps."""
        self._sizes.add(_trained_elements(optimizer))
        self._classes.add(type(optimizer))
        self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        self._count = steps
        if optimizer not in self._stepped:
            self._stepped.add(optimizer)
            self._last_first_step = steps

    def is_new_training(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether `optimizer` trains another number of elements than those before, or is of another class.

        If it has stepped, whether it trains far more. So layers that are unfrozen after the first epoch count as new;
        other experts of a mixture do not.
        """
        size = _trained_elements(optimizer)
        if optimizer in self._stepped:
            return size > _MIN_GROWTH * max(self._sizes)
        return size not in self._sizes or type(optimizer) not in self._classes

    def extend(self, steps: int) -> None:
        """Trace as many steps again after `steps`, where another training begins."""
        self._steps = steps + self._of_one_training
        self._counts.clear()

    def continue_until(self, steps: int) -> None:
        """Trace `steps` in all, or more."""
        self._until = max(self._until, steps)

    def continue_for_rounds(self, steps: int, rounds: int) -> None:
        """Trace so many rounds of a loop after `steps`; in each, every optimizer that has stepped steps once."""
        self.continue_until(steps + rounds * max(1, len(self._stepped)))

    @property
    def enough(self) -> int:
        """Steps after which the trace is complete, as far as is known now."""
        return max(self._until, self._usual, self._in_full)

    @property
    def _in_full(self) -> int:
        """Steps after which each optimizer has done its own; those that are far behind the others are not awaited."""
        counts, wanted = list(self._counts.values()), self._of_one_training
        if not self._per_optimizer or not counts or max(counts) >= _MAX_STEPS_FACTOR * wanted:
            return 0
        return self._count + sum(max(0, wanted - count) for count in counts)

    @property
    def _usual(self) -> int:
        """Steps of every optimizer after the last of them began; `_steps` where there is only one."""
        others = len(self._known) - 1
        if others < 1:
            return self._steps
        if len(self._stepped) <= others:
            return self._steps + _EXTRA_STEPS_PER_OPTIMIZER * len(self._known)
        if others >= _MAX_IN_TURN:
            return max(self._steps, self._last_first_step + others)
        began = self._steps - self._of_one_training  # the steps of trainings before
        period = self._last_first_step - began
        whole = began + _ROUNDS * period + 1 if period <= _MAX_PERIOD else 0
        return max(self._steps, self._last_first_step + _ROUNDS * (others + 1) - 1, whole)


def _trained_elements(optimizer: torch.optim.Optimizer) -> int:
    """Elements of the parameters with a gradient; of all parameters where a closure is yet to compute gradients."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    return sum(parameter.numel() for parameter in with_gradient or parameters)
