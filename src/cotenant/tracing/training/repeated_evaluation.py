"""A long evaluation or generation: calls of a model that repeat are replaced by their result once three were alike.

Alike calls have inputs of the same shapes, and record the same events: each allocates the same sizes in the same order,
and frees them at the same places. What a call leaves beside its results is freed before the next. The allocator is then
in the same state after each of them, so one more changes no peak. Replaced are calls of a whole model in evaluation
mode without gradients; not where a call reads values from the GPU, on which sizes may depend, returns values that are
known, keeps a storage for the next call, frees one of before, or returns a view.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree

from cotenant.tracing.assumptions.known_values import KnownValues, has_known_values
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training.call_signature import signature
from cotenant.tracing.training.repeated_batches import RepeatedBatches

_MIN_ALIKE = 3


def patches(context: PatchContext) -> list[Patch]:
    """The call of modules."""
    batches = RepeatedBatches(context.recorder, context.mode.known_values, context.observer.conditional_work)
    context.observer.batches = batches
    calls = RepeatedCalls(context.recorder, context.mode.known_values, batches)
    return [
        Patch(
            target="torch.nn:Module.__call__", phase=Phase.TRAINING, replacement=calls.replacing, wraps=True,
            reason="Hundreds of alike evaluation batches take most of the time of a trace.",
            source="torch/nn/modules/module.py, `Module._wrapped_call_impl`",
        )
    ]  # fmt: skip


class RepeatedCalls:
    """The latest calls of models, by module and inputs."""

    def __init__(self, recorder: TraceRecorder, values: KnownValues, batches: RepeatedBatches) -> None:
        self._recorder = recorder
        self._values = values
        self._batches = batches
        self._inside = False
        self._alike: weakref.WeakKeyDictionary[torch.nn.Module, dict[object, _Repetition]] = weakref.WeakKeyDictionary()

    def replacing(self, original: Any) -> Any:
        """`Module.__call__`, which returns the result of earlier calls where this one would be alike."""

        @functools.wraps(original)
        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self._recorder.in_module:
                return original(module, *args, **kwargs)
            if torch.is_grad_enabled():
                return self._batches.call(original, module, args, kwargs)
            if module.training or self._recorder.is_paused:
                return original(module, *args, **kwargs)
            key = signature(module, args, kwargs)
            if key is None:
                return original(module, *args, **kwargs)
            known = self._alike.setdefault(module, {}).setdefault(key, _Repetition())
            if self._recorder.any_live(known.left):
                known.forget()
            if known.output is not None:
                return known.remade()
            before, reads = self._recorder.position(), self._values.reads
            self._inside = True
            try:
                result = original(module, *args, **kwargs)
            finally:
                self._inside = False
            events, left = self._recorder.events_since(before)
            known.add(None if self._values.reads > reads else events, result, left, self._recorder)
            return result

        return call


class _Repetition:
    """Calls with one kind of inputs: how many were alike, and what they returned."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """No calls so far."""
        self.count = 0
        self.output: Any = None
        self.left: set[int] = set()  # storages that the last call left beside its results, such as casts of autocast
        self._events: object = None

    def add(self, events: object | None, result: Any, left: set[int], recorder: TraceRecorder) -> None:
        """Record a call, its `events` and its result; `left`: new storages that live after it.

        Without events the call is like no other.
        """
        self.count = self.count + 1 if events is not None and events == self._events else 1
        self._events = events
        leaves, structure = _pytree.tree_flatten(result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        owned = [recorder.storage_id(tensor) for tensor in tensors if isinstance(tensor, FakeTensor)]
        self.left = left.difference(owned)
        if self.count < _MIN_ALIKE:
            return
        is_plain = all(isinstance(leaf, (torch.Tensor, int, float, bool, str, type(None))) for leaf in leaves)
        if not is_plain or len(owned) != len(tensors) or len(set(owned)) != len(owned) or not left.issuperset(owned):
            return
        if any(has_known_values(tensor) or not _fills_its_storage(tensor) for tensor in tensors):
            return
        described = [_describe(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.output = (described, structure)

    def remade(self) -> Any:
        """A result like that of the last call."""
        described, structure = self.output
        leaves = [torch.empty_strided(*leaf[1:3], **leaf[3]) if _is_description(leaf) else leaf for leaf in described]
        return _pytree.tree_unflatten(leaves, structure)


_TENSOR = object()


def _describe(tensor: torch.Tensor) -> tuple[Any, ...]:
    options = {"dtype": tensor.dtype, "device": tensor.device}
    return _TENSOR, tuple(tensor.shape), tensor.stride(), options


def _is_description(leaf: Any) -> bool:
    return isinstance(leaf, tuple) and bool(leaf) and leaf[0] is _TENSOR


def _fills_its_storage(tensor: torch.Tensor) -> bool:
    return tensor.storage_offset() == 0 and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
