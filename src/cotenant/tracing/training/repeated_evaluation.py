"""A long evaluation, generation or roll-out: calls of a model that repeat are replaced by their result.

Alike calls have inputs of the same shapes, and record the same events: each allocates the same sizes in the same order,
and frees them at the same places. What a call leaves beside its results is freed before the next. The allocator is then
in the same state after each of them, so one more changes no peak, unless more is allocated around it than around those
before: then their events are recorded once more, which takes no computing. So are those of the last three calls, at the
end of the trace: where their results lie among the blocks that they free decides what fits there later.

Replaced are calls of a whole model in evaluation mode once three were alike; once 16 were, of a model in training mode,
as in roll-outs, and of a part that another model's forward calls, as samplers do. Not replaced are calls that return
values that are known or a view of older ones, keep a storage for the next call, or free one of before.

Without `no_grad`, calls of one place of the script are compared between two backward passes. The graph of each must be
dropped when the next call has returned. Another call returns results whose graph holds what that of the last one held;
if a backward pass comes to it, its gradients are missing: a warning says so. Parts of models, and models with hooks or
wrappers, are not replaced.

Numbers among the inputs may decide what a call does, so calls with other numbers are others. Once 16 calls in a row of
a whole model were alike that had 16 different ones, as of a sampler's steps, numbers decide nothing.

Sizes may depend on values that a call reads from the GPU, as of routers to experts. Calls that read are alike if they
read the same; of the inputs of another one, values that are known must be the same, but for those that differed among
alike calls. Parts, and models in training mode, must not read.

A model whose own method calls `self.forward(x)` is called without `Module.__call__`. It is noticed by the first module
that such a call of it calls, and later ones are replaced in the same way.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree

from cotenant.tracing import script_location
from cotenant.tracing.assumptions.known_values import KnownValues
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase
from cotenant.tracing.recorded_span import RecordedSpan
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training.call_graphs import CallGraphs
from cotenant.tracing.training.call_signature import may_have_gpu_tensors, numbers_apart, signature
from cotenant.tracing.training.conditional_work import ConditionalWork
from cotenant.tracing.training.growing_calls import GrowingCalls
from cotenant.tracing.training.repeated_batches import RepeatedBatches, describe_values
from cotenant.tracing.training.repeated_decoding import RepeatedDecoding
from cotenant.tracing.training.result_template import ResultTemplate

_MIN_ALIKE = 3
_MIN_ALIKE_ELSEWHERE = 16  # in training mode, or inside another model's call
_MIN_EVENTS_INSIDE = 64  # of a part of a model: single layers are cheap
_MAX_EVENTS = 100_000  # of the trace, from which on calls leave events only where much more is allocated
_MUCH_MORE = 1 / 64
_LAST = 3  # replaced calls that have their events in the trace


def patches(context: PatchContext) -> list[Patch]:
    """The call of modules."""
    recorder, values, work = context.recorder, context.mode.known_values, context.observer.progress.conditional_work
    context.observer.batches = RepeatedBatches(recorder, values, work)
    calls = RepeatedCalls(recorder, values, work, context.observer.batches)
    return [
        Patch(
            target="torch.nn:Module.__call__", phase=Phase.TRAINING, replacement=calls.replacing, wraps=True,
            reason="Hundreds of alike evaluation batches take most of the time of a trace.",
            source="torch/nn/modules/module.py, `Module._wrapped_call_impl`",
        )
    ]  # fmt: skip


class RepeatedCalls:
    """The latest calls of models, by module and inputs."""

    def __init__(
        self, recorder: TraceRecorder, values: KnownValues, work: ConditionalWork, batches: RepeatedBatches
    ) -> None:
        self._recorder = recorder
        self._values = values
        self._work = work
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
            if self._busy or torch._C._are_functorch_transforms_active():  # what they wrap has no storage
                return original(module, *args, **kwargs)
            is_part = not self._recorder.modules.is_empty
            if not is_part and self._parts:
                self._parts.clear()
            if torch.is_grad_enabled():
                if is_part:
                    return original(module, *args, **kwargs)
                return self._with_graph(original, module, args, kwargs)
            if self._recorder.is_paused:
                return original(module, *args, **kwargs)
            if not is_part:
                self._notice_direct_call(sys._getframe(1))
                return self._whole(original, module, args, kwargs)
            return self._compare(original, module, args, kwargs, is_part=True)

        return call

    def _with_graph(self, original: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a whole model with gradients, or make its result."""

        def call(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            return self._batches.call(original, module, args, kwargs)

        if self._recorder.is_paused or self._batches.depth or not may_have_gpu_tensors((*args, *kwargs.values())):
            return call(module, *args, **kwargs)
        return self._compare(call, module, args, kwargs, is_part=False, place=script_location.call_stack())

    def _whole(self, original: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a whole model without gradients, or make its result."""
        if layers := self._decoding.layers(kwargs):
            return self._decoding.call(original, module, args, kwargs, layers)

        def compare(module: torch.nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            return self._compare(original, module, args, kwargs, is_part=False)

        return self._growing.call(compare, module, args, kwargs)

    def _notice_direct_call(self, caller: FrameType) -> None:
        """Replace the `forward` of a model that was called without `Module.__call__`, and calls a module now."""
        model = script_location.local_value(caller, "self") if caller.f_code.co_name == "forward" else None
        if not isinstance(model, torch.nn.Module):
            return
        if "_parameters" not in vars(model):  # its `__init__` does not call that of `Module`: `forward` alone works
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

    def _compare(
        self, original: Any, module: torch.nn.Module, args: Any, kwargs: Any, *, is_part: bool, place: object = None
    ) -> Any:
        """Call a module, or make its result. The parts of a whole model are compared, too.

        `place`: of the script, where the call is one with gradients.
        """
        key = signature(module, args, kwargs)
        if key is None:
            return original(module, *args, **kwargs)
        inputs = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        rows = (self._parts if is_part else self._alike).setdefault(module, {})
        graphs = None if place is None else CallGraphs(self._recorder)
        known = rows.setdefault((key, module.training, place), _Repetition(self._recorder, graphs))
        apart = None if is_part or place is not None else numbers_apart(key)
        with_any = None
        if apart is not None:
            with_any = rows.setdefault((apart[0], module.training, None), _Repetition(self._recorder))
        for row in (known, with_any):
            if row is not None and not row.goes_on(self._batches.backward_passes):
                row.forget()
        if known.graphs is not None and known.graphs.is_used:
            return original(module, *args, **kwargs)
        if with_any is not None and with_any.output is not None:
            return with_any.repeat(inputs)
        if known.output is not None:
            if known.graphs is not None:
                self._work.record_call()
            is_like = not known.reads or known.has_like_values(self._values_of(inputs))
            return known.repeat(inputs) if is_like else original(module, *args, **kwargs)
        before, reads = self._recorder.position(), self._values.reads
        live = dict(self._recorder.live_bytes)
        values = self._values_of(inputs)  # before the call: what it reads of unknown ones is assumed, and then known
        result, log = self._logged(original, module, args, kwargs, is_part=is_part)
        if self._recorder.is_paused:  # a batch of gradient accumulation was replaced, whose backward pass follows
            return result
        events, left = self._recorder.events_since(before)
        may_read = not is_part and not module.training and place is None
        is_usable = self._values.reads == reads or may_read
        is_usable = is_usable and (not is_part or len(events or ()) >= _MIN_EVENTS_INSIDE)
        if log or known.reads:
            known.note_reads(log, values)
        wanted = _MIN_ALIKE_ELSEWHERE if is_part or module.training else _MIN_ALIKE
        if place is not None and known.count + 1 >= wanted:
            is_usable = is_usable and self._batches.is_usable(module)
        traced = _TracedCall(before, live, inputs, result, left)
        known.add(traced, events if is_usable else None, wanted)
        if with_any is not None and apart is not None:
            with_any.add(traced, events if is_usable and not log else None, _MIN_ALIKE_ELSEWHERE, apart[1])
        return result

    def _logged(
        self, original: Any, module: torch.nn.Module, args: Any, kwargs: Any, *, is_part: bool
    ) -> tuple[Any, list[bytes | None]]:
        """The result of a call, and the values that it read."""
        log: list[bytes | None] = []
        outer, self._values.read_log = self._values.read_log, log
        self._busy = is_part
        try:
            return original(module, *args, **kwargs), log
        finally:
            self._busy = False
            self._values.read_log = outer
            if outer is not None:
                outer.extend(log)

    def _values_of(self, inputs: list[torch.Tensor]) -> list[tuple[bool, bytes | None]]:
        return [describe_values(tensor, self._values) for tensor in inputs]


class _TracedCall(NamedTuple):
    """A call that was traced.

    Attributes:
        before: where its events begin.
        live: bytes allocated around it, by GPU.
        inputs: tensors among them.
        left: new storages that live after it.
    """

    before: tuple[int, int]
    live: dict[int, int]
    inputs: list[torch.Tensor]
    result: Any
    left: set[int]


class _Repetition:
    """Calls with one kind of inputs: how many were alike, and what they returned.

    Attributes:
        graphs: of the last calls; None without gradients.
        numbers: of alike calls; empty where calls of the same ones are compared.
        output: what another call returns; None if it is not known.
        reads: values that the last call read.
    """

    def __init__(self, recorder: TraceRecorder, graphs: CallGraphs | None = None) -> None:
        self._recorder = recorder
        self.graphs = graphs
        self.forget()

    def forget(self) -> None:
        """No calls so far."""
        self._replaced: deque[int] = deque()  # the latest replaced calls whose events are recorded at the end
        self.count = 0
        self.numbers: set[tuple[object, ...]] = set()
        self.output: ResultTemplate | None = None
        self._left: set[int] = set()  # storages that the last call left beside its results, such as casts of autocast
        self._span: RecordedSpan | None = None  # of the last call
        self._live: dict[int, int] = {}  # bytes allocated around it, by GPU
        self.reads: list[bytes | None] = []
        self._inputs: list[tuple[bool, bytes | None]] = []  # known values of its inputs, where it read any
        self._varied: list[bool] = []  # inputs, but masks, whose values differed among alike calls
        self._events: object = None

    def goes_on(self, backward_passes: int) -> bool:
        """Whether a call that begins may be alike: nothing but results is left of those before."""
        if self.graphs is not None:
            return self.graphs.are_dropped(backward_passes)
        return not self._recorder.any_live(self._left)

    def note_reads(self, reads: list[bytes | None], inputs: list[tuple[bool, bytes | None]]) -> None:
        """Record what a call has read, before it is added: calls that read other values are not alike."""
        if reads != self.reads or len(inputs) != len(self._inputs):
            self.count = 0
            self._varied = [False] * len(inputs)
        else:
            pairs = zip(self._inputs, inputs, self._varied, strict=True)
            self._varied = [known or (before != now and not now[0]) for before, now, known in pairs]
        self.reads, self._inputs = reads, inputs

    def has_like_values(self, inputs: list[tuple[bool, bytes | None]]) -> bool:
        """Whether the known values of a call's inputs decide nothing: they are the last one's, or were seen to vary."""
        pairs = zip(self._inputs, inputs, self._varied, strict=True)
        return all(before == now or varied for before, now, varied in pairs)

    def add(
        self, call: _TracedCall, events: object | None, wanted: int, numbers: tuple[object, ...] | None = None
    ) -> None:
        """Record a call and its `events`; further ones are replaced after `wanted` alike ones.

        Of so many different `numbers` if any. Without events a call is like no other.
        """
        is_alike = events is not None and events == self._events
        self.count = self.count + 1 if is_alike else 1
        if numbers is not None:
            self.numbers = {*self.numbers, numbers} if is_alike else {numbers}
            self.count = len(self.numbers)
        self._events = events
        leaves = _pytree.tree_leaves(call.result)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        owned = [self._recorder.storage_id(tensor) for tensor in tensors if isinstance(tensor, FakeTensor)]
        self._left = call.left.difference(owned)
        if self.graphs is not None:
            self.graphs.add(tensors, call.inputs, self._left)
        is_plain = all(isinstance(leaf, (torch.Tensor, int, float, bool, str, type(None))) for leaf in leaves)
        if self.count < wanted or not is_plain:
            return
        self._span, self._live = self._recorder.span_since(call.before), call.live
        saved = self._span.storages(self._left) if self.graphs is not None else {}
        self.output = ResultTemplate.of(call.result, self._recorder, self._span.first, saved)

    def repeat(self, inputs: list[torch.Tensor]) -> Any:
        """A result like that of the last call, with its events where more is allocated now than around it."""
        recorder = self._recorder
        least = 1 + _MUCH_MORE if recorder.event_count > _MAX_EVENTS else 1
        if all(nbytes <= least * self._live.get(gpu, 0) for gpu, nbytes in recorder.live_bytes.items()):
            position = recorder.position()
            result = self._remade(inputs)
            results = sorted(self.output.storages) if self.output is not None else []
            if self._span is not None and recorder.note_replaced(position, self._span, results):
                self._replaced.append(position[0])
                if len(self._replaced) > _LAST:
                    del recorder.replaced_calls[self._replaced.popleft()]
            return result
        self._live = dict(recorder.live_bytes)
        recorder.pause()
        result = self._remade(inputs)
        recorder.resume(self._span)
        return result

    def _remade(self, inputs: list[torch.Tensor]) -> Any:
        """A result like that of the last call, with a graph if it had one."""
        assert self.output is not None
        if self.graphs is None:
            return self.output.make()
        result = self.output.make(self.graphs.held(inputs), inputs)
        tensors = (leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))
        self.graphs.add(tensors, inputs, is_replaced=True)
        return result
