"""A long evaluation, generation or roll-out: calls of a model that repeat are replaced by their result.

Alike calls have inputs of the same shapes, and record the same events: each allocates the same sizes in the same order,
and frees them at the same places. What a call leaves beside its results is freed before the next. The allocator is then
in the same state after each of them, so one more changes no peak, unless more is allocated around it than around those
before: then their events are recorded once more, which takes no computing.

Replaced are calls without gradients: of a whole model in evaluation mode once three were alike; once 16 were, of a
model in training mode, as in roll-outs, and of a part that another model's forward calls, as samplers do. Not replaced
are calls that read values from the GPU, on which sizes may depend, return values that are known or a view, keep a
storage for the next call, or free one of before.

A model whose own method calls `self.forward(x)` is called without `Module.__call__`. It is noticed by the first module
that such a call of it calls, and later ones are replaced in the same way.
"""

from __future__ import annotations

import functools
import sys
import weakref
from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree

from cotenant.tracing.assumptions.known_values import KnownValues, has_known_values
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase
from cotenant.tracing.recorded_span import RecordedSpan
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training.call_signature import signature
from cotenant.tracing.training.growing_calls import GrowingCalls
from cotenant.tracing.training.repeated_batches import RepeatedBatches
from cotenant.tracing.training.repeated_decoding import RepeatedDecoding

_MIN_ALIKE = 3
_MIN_ALIKE_ELSEWHERE = 16  # in training mode, or inside another model's call
_MIN_EVENTS_INSIDE = 64  # of a part of a model: single layers are cheap
_MAX_EVENTS = 100_000  # of the trace, from which on calls leave events only where much more is allocated
_MUCH_MORE = 1 / 64


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
        self._decoding = RepeatedDecoding(recorder, values)
        self._growing = GrowingCalls(recorder, values)
        self._busy = False  # in a call that is compared, and whose parts are not
        self._alike: weakref.WeakKeyDictionary[torch.nn.Module, dict[object, _Repetition]] = weakref.WeakKeyDictionary()
        self._parts: weakref.WeakKeyDictionary[torch.nn.Module, dict[object, _Repetition]] = weakref.WeakKeyDictionary()
        """The same within one call of a model."""

    def replacing(self, original: Any) -> Any:
        """`Module.__call__`, which returns the result of earlier calls where this one would be alike."""

        @functools.wraps(original)
        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            if self._busy:
                return original(module, *args, **kwargs)
            is_part = not self._recorder.modules.is_empty
            if not is_part and self._parts:
                self._parts.clear()
            if torch.is_grad_enabled():
                if is_part:
                    return original(module, *args, **kwargs)
                return self._batches.call(original, module, args, kwargs)
            if self._recorder.is_paused:
                return original(module, *args, **kwargs)
            if not is_part:
                self._notice_direct_call(sys._getframe(1))
                return self._whole(original, module, args, kwargs)
            return self._compare(original, module, args, kwargs, is_part=True)

        return call

    def _whole(self, original: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a whole model without gradients, or make its result."""
        if layers := self._decoding.layers(kwargs):
            return self._decoding.call(original, module, args, kwargs, layers)

        def compare(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            return self._compare(original, module, args, kwargs, is_part=False)

        return self._growing.call(compare, module, args, kwargs)

    def _notice_direct_call(self, caller: FrameType) -> None:
        """Replace the `forward` of a model that was called without `Module.__call__`, and calls a module now."""
        model = caller.f_locals.get("self")
        if caller.f_code.co_name != "forward" or not isinstance(model, torch.nn.Module):
            return
        forward = vars(type(model)).get("forward")
        if getattr(forward, "__code__", None) is not caller.f_code:  # a decorated one, or that of another class
            return

        @functools.wraps(forward)
        def direct(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            is_part = not self._recorder.modules.is_empty
            is_usual = self._busy or is_part or self._recorder.is_paused or torch.is_grad_enabled()
            if is_usual:
                return forward(module, *args, **kwargs)
            return self._whole(busy, module, args, kwargs)

        def busy(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            self._busy = True
            try:
                return forward(module, *args, **kwargs)
            finally:
                self._busy = False

        type(model).forward = direct

    def _compare(self, original: Any, module: torch.nn.Module, args: Any, kwargs: Any, *, is_part: bool) -> Any:
        """Call a module without gradients, or make its result. The parts of a whole model are compared, too."""
        key = signature(module, args, kwargs)
        if key is None:
            return original(module, *args, **kwargs)
        calls = self._parts if is_part else self._alike
        known = calls.setdefault(module, {}).setdefault((key, module.training), _Repetition())
        if self._recorder.any_live(known.left):
            known.forget()
        if known.output is not None:
            return known.repeat(self._recorder)
        before, reads = self._recorder.position(), self._values.reads
        live = dict(self._recorder.live_bytes)
        self._busy = is_part
        try:
            result = original(module, *args, **kwargs)
        finally:
            self._busy = False
        events, left = self._recorder.events_since(before)
        is_usable = self._values.reads == reads and (not is_part or len(events or ()) >= _MIN_EVENTS_INSIDE)
        wanted = _MIN_ALIKE_ELSEWHERE if is_part or module.training else _MIN_ALIKE
        if known.add(events if is_usable else None, result, left, self._recorder, wanted):
            known.span, known.live = self._recorder.span_since(before), live
        return result


class _Repetition:
    """Calls with one kind of inputs: how many were alike, and what they returned."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """No calls so far."""
        self.count = 0
        self.output: Any = None
        self.left: set[int] = set()  # storages that the last call left beside its results, such as casts of autocast
        self.span: RecordedSpan | None = None  # of the last call
        self.live: dict[int, int] = {}  # bytes allocated around it, by GPU
        self._events: object = None

    def add(self, events: object | None, result: Any, left: set[int], recorder: TraceRecorder, wanted: int) -> bool:
        """Record a call, its `events` and its result; `left`: new storages that live after it.

        Whether further calls can be replaced, after `wanted` alike ones. Without events a call is like no other.
        """
        self.count = self.count + 1 if events is not None and events == self._events else 1
        self._events = events
        leaves, structure = _pytree.tree_flatten(result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        owned = [recorder.storage_id(tensor) for tensor in tensors if isinstance(tensor, FakeTensor)]
        self.left = left.difference(owned)
        if self.count < wanted:
            return False
        is_plain = all(isinstance(leaf, (torch.Tensor, int, float, bool, str, type(None))) for leaf in leaves)
        if not is_plain or len(owned) != len(tensors) or len(set(owned)) != len(owned) or not left.issuperset(owned):
            return False
        if any(has_known_values(tensor) or not _fills_its_storage(tensor) for tensor in tensors):
            return False
        described = [_describe(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.output = (described, structure)
        return True

    def repeat(self, recorder: TraceRecorder) -> Any:
        """A result like that of the last call, with its events where more is allocated now than around it."""
        least = 1 + _MUCH_MORE if recorder.event_count > _MAX_EVENTS else 1
        if all(nbytes <= least * self.live.get(gpu, 0) for gpu, nbytes in recorder.live_bytes.items()):
            return self._remade()
        self.live = dict(recorder.live_bytes)
        recorder.pause()
        result = self._remade()
        recorder.resume(self.span)
        return result

    def _remade(self) -> Any:
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
