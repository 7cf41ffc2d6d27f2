"""What a function does besides its result while AOTAutograd traces it: tensors in attributes, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from cotenant.tracing.patches.registry import PatchTable


class NotCompilableError(Exception):
    """A function runs eagerly; the text says why."""


Attribute = tuple[torch.nn.Module, str]


def tensor_attributes(module: torch.nn.Module | None) -> list[Attribute]:
    """Attributes of `module` and its submodules that are tensors, but neither parameters nor buffers: caches, masks.

    Results that are a part of some autograd graph are left out: as inputs they would prolong it to the next step.
    """
    if module is None:
        return []
    return [
        (part, name)
        for part in module.modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor) and value.grad_fn is None
    ]


@contextlib.contextmanager
def set_for_a_while(attributes: Sequence[Attribute], values: Iterable[Any]) -> Iterator[None]:
    """Gives attributes other values."""
    before = [(part, name, vars(part)[name]) for part, name in attributes]
    for (part, name), value in zip(attributes, values, strict=True):
        part.__dict__[name] = value
    try:
        yield
    finally:
        for part, name, value in before:
            part.__dict__[name] = value


class StoredTensors:
    """Attributes of a module and its submodules that a function sets to traced tensors.

    Attributes:
        attributes: those that are tensors now, with `values`.
    """

    def __init__(self, module: torch.nn.Module | None) -> None:
        parts = () if module is None else module.modules()
        self._before = {part: {name: _copied(value) for name, value in vars(part).items()} for part in parts}
        self.attributes: list[Attribute] = []
        self.values: list[torch.Tensor] = []

    def take(self) -> None:
        """Finds them, and puts back what was there before.

        Raises:
            NotCompilableError: there are some in containers.
        """
        inside = ""
        for part, before in self._before.items():
            for name, value in list(vars(part).items()):
                if name in _MODULE_STATE or not _holds_traced(value):
                    continue
                if isinstance(value, torch.Tensor) and value is not before.get(name):
                    self.attributes.append((part, name))
                    self.values.append(value)
                elif not isinstance(value, torch.Tensor):
                    inside = name
                if name in before:
                    part.__dict__[name] = before[name]
                else:
                    del part.__dict__[name]
        if inside:
            raise NotCompilableError(f"it stores tensors in `{inside}`")


_MODULE_STATE = frozenset(("_parameters", "_buffers", "_modules"))


def _copied(value: Any) -> Any:
    """The value, or a shallow copy of a container that may be appended to."""
    return type(value)(value) if type(value) in (list, dict) else value


def _holds_traced(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return any(isinstance(leaf, FunctionalTensor) for leaf in pytree.tree_leaves(value))
    return isinstance(value, FunctionalTensor)


@contextlib.contextmanager
def forbidden_calls() -> Iterator[None]:
    """Has functions raise `NotCompilableError` that Dynamo handles, and AOTAutograd would trace into something else.

    Checkpointing would be traced as computing everything twice, and the partitioner would merge both.
    Source: torch/_functorch/partitioners.py, `min_cut_rematerialization_partition`, `fx_graph_cse`.
    """
    table = PatchTable()
    for owner, name, words in (
        (torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", "it checkpoints activations"),
        (torch.utils.checkpoint.CheckpointFunction, "apply", "it checkpoints activations"),
        (torch.Tensor, "backward", "it runs backward"),
        (torch.autograd, "backward", "it runs backward"),
    ):
        table.set(owner, name, _raising(words))
    try:
        yield
    finally:
        table.undo()


def _raising(words: str) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise NotCompilableError(words)

    return call
