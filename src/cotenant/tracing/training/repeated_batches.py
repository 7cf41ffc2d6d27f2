"""Gradient accumulation: batches of one optimizer step that repeat are not computed again once two were alike.

A batch is the call of a model that is trained, the loss, and the backward pass. It is replaced if the last two of the
same step began with the same bytes allocated, had inputs of the same shapes, recorded the same events, and left the
same storages. The first batch of a step allocates the gradients, so at least three are traced. For a replaced batch the
model returns tensors like its last ones, which backward ends at, and the events of the last batch are recorded once
more: the trace is the same as without replacing. What comes between two batches is recorded as ever.

Beyond `_MAX_EVENTS` a replaced batch leaves no events: the allocator repeats itself by then. Results that live until
the next ones exist alternate between two blocks, so it does so every second batch: an even number is left out.

Not replaced: several models in a batch, gradients that hooks or wrappers handle, `autograd.grad`, results that live on
outside of what the model returned, known values in what it returned, and sizes that depend on the data.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree

from cotenant.tracing.assumptions.known_values import KnownValues, digest
from cotenant.tracing.recorded_span import RecordedSpan
from cotenant.tracing.recorder import TraceRecorder
from cotenant.tracing.training.call_signature import signature
from cotenant.tracing.training.conditional_work import ConditionalWork
from cotenant.tracing.training.result_template import ResultTemplate

_MAX_EVENTS = 100_000  # of the trace
_MASK_DTYPES = frozenset({torch.bool, torch.uint8, torch.int32, torch.int64})
_WRAPPERS = ("torch.distributed.fsdp", "deepspeed", "torch.distributed._composable")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(slots=True)
class _Batch:
    """One batch, from the call of its model on.

    Attributes:
        key: shapes and settings of the call.
        live_bytes: allocated when it began, by GPU.
        start: of its events.
        values: digests of the known values of its inputs.
        reads: values that were read while the model ran.
        result: how to make what the model returned; None where that is not known.
        owned: storages of the results; `made`: all that lived when the call ended.
        events: those of the batch, once it ended; `span`: the same to be recorded again.
        varied: for each of `values`, whether it differed from that of the batch before, and may differ again.
    """

    key: object
    live_bytes: dict[int, int]
    start: tuple[int, int]
    values: tuple[tuple[bool, bytes | None], ...]
    reads: list[bytes | None] = field(default_factory=list)
    result: ResultTemplate | None = None
    owned: frozenset[int] = frozenset()
    made: frozenset[int] = frozenset()
    events: object = None
    span: RecordedSpan | None = None
    varied: tuple[bool, ...] = ()


class RepeatedBatches:
    """The batches since the last optimizer step.

    Attributes:
        backward_passes: so far, with those for `autograd.grad`.
        depth: of those that run.
    """

    def __init__(self, recorder: TraceRecorder, values: KnownValues, work: ConditionalWork) -> None:
        self._recorder = recorder
        self._values = values
        self._work = work
        self._usable: weakref.WeakKeyDictionary[torch.nn.Module, bool] = weakref.WeakKeyDictionary()
        self._model: weakref.ref[torch.nn.Module] | None = None
        self._with_gradient: set[int] = set()  # parameters of the model, by `id`
        self.backward_passes = 0
        self._index = 0  # batches of this step that ended
        self.depth = 0
        self._open: _Batch | None = None
        self._last: _Batch | None = None
        self._alike: _Batch | None = None
        self._left_out = 0  # batches since `_alike` that left no events

    def call(self, original: Any, module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """Call a module that no other one calls, with gradients; or make its result where the batch is a repetition."""
        if self.depth or not any(parameter.requires_grad for parameter in module.parameters()):
            return original(module, *args, **kwargs)
        if self._open is not None or self._recorder.is_paused:  # a second model, or no backward pass after the first
            self._abandon()
            return original(module, *args, **kwargs)
        same = self._model is not None and self._model() is module
        if self._index == 0 or not same or not self.is_usable(module):
            if not same:
                self._forget()
                self._model = weakref.ref(module)
                self._with_gradient.clear()
            self._open = _UNKNOWN
            return original(module, *args, **kwargs)
        key = signature(module, args, kwargs)
        inputs = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if key is None or any(tensor.requires_grad for tensor in inputs):
            self._forget()
            self._open = _UNKNOWN
            return original(module, *args, **kwargs)
        key = (key, module.training, getattr(module, "require_backward_grad_sync", None), _cpu_values(inputs))
        live = {gpu: nbytes for gpu, nbytes in self._recorder.live_bytes.items() if nbytes}
        batch = _Batch(
            key, live, self._recorder.position(), tuple(describe_values(tensor, self._values) for tensor in inputs)
        )
        if self._alike is not None and self._repeats(batch, self._alike) and self._has_gradients(module):
            return self._replace(self._alike)
        self._settle()
        return self._trace(original, module, args, kwargs, batch)

    def begin_backward(self, function: str) -> None:
        """A backward pass, or `autograd.grad`, begins."""
        self.depth += 1
        self.backward_passes += 1
        if function != "backward":
            self._abandon()

    def end_backward(self) -> None:
        """It ended; the outermost one ends the batch."""
        self.depth -= 1
        if self.depth:
            return
        if self._recorder.is_paused:
            is_long = self._recorder.event_count > _MAX_EVENTS
            self._left_out += is_long
            self._recorder.resume(None if is_long or self._alike is None else self._alike.span)
            return
        batch, self._open = self._open, None
        if batch is None:
            return
        self._index += 1
        if batch is _UNKNOWN:
            return
        last, self._last = self._last, self._end(batch)
        if last is not None and self._last is not None and self._are_alike(last, batch):
            self._alike = batch
            batch.span = self._recorder.span_since(batch.start)

    def close(self) -> None:
        """An optimizer step begins: a batch without a backward pass ends."""
        if not self.depth and (self._open is not None or self._recorder.is_paused):
            self._abandon()
        self._settle()

    def _settle(self) -> None:
        """Batches that differ, or other work, begin: make the number of those that were left out even."""
        if self._left_out % 2 and self._alike is not None and self._alike.span is not None:
            self._recorder.repeat(self._alike.span)
        self._alike = None
        self._left_out = 0

    def end_step(self) -> None:
        """An optimizer step ended: the next batch is the first of another one."""
        self._forget()

    def _forget(self) -> None:
        self._index = self._left_out = 0
        self._open = self._last = self._alike = None

    def _abandon(self) -> None:
        """The present batch is like no other one; if it was being replaced, no further ones of its model are."""
        if self._recorder.is_paused:
            self._recorder.resume()
            self._recorder.warn("batches of one optimizer step are not alike: the peak of some was not traced")
            model = self._model() if self._model is not None else None
            if model is not None:
                self._usable[model] = False
        self._forget()
        self._open = _UNKNOWN

    def _trace(self, original: Any, module: torch.nn.Module, args: Any, kwargs: Any, batch: _Batch) -> Any:
        recorder, values = self._recorder, self._values
        self._open = batch
        outer, values.read_log = values.read_log, batch.reads
        try:
            result = original(module, *args, **kwargs)
        finally:
            values.read_log = outer
        first = batch.start[1]
        batch.made = frozenset(recorder.live_since(first))
        if self._last is not None and self._last.key == batch.key:
            batch.result = ResultTemplate.of(result, recorder, first)
            batch.owned = batch.result.storages if batch.result is not None else frozenset()
        return result

    def _end(self, batch: _Batch) -> _Batch | None:
        """The batch with its events; None if its storages live on where another batch would not find its own."""
        model = self._model() if self._model is not None else None
        first = batch.start[1]
        events, left = self._recorder.events_since(batch.start, older=True)
        batch.events = _with_sorted_frees(events or ())
        if model is None or not self._has_gradients(model, before=first):
            return None
        if batch.result is not None and not batch.made.intersection(left) <= batch.owned:
            return None
        return batch

    def _are_alike(self, last: _Batch, batch: _Batch) -> bool:
        if batch.result is None or last.key != batch.key or last.live_bytes != batch.live_bytes:
            return False
        if last.reads != batch.reads or last.events != batch.events:
            return False
        batch.varied = tuple(
            before != now and not now[0] for before, now in zip(last.values, batch.values, strict=True)
        )
        return True

    def _repeats(self, batch: _Batch, alike: _Batch) -> bool:
        """Whether a batch that begins will be like the last ones.

        Where the model reads values, masks must have the same ones, and so must inputs that were never seen to change.
        """
        if batch.key != alike.key or batch.live_bytes != alike.live_bytes:
            return False
        pairs = zip(batch.values, alike.values, alike.varied, strict=True)
        return not alike.reads or all(now == before or varied for now, before, varied in pairs)

    def _replace(self, alike: _Batch) -> Any:
        assert alike.result is not None
        self._work.record_call()
        self._recorder.pause()
        return alike.result.make()

    def _has_gradients(self, module: torch.nn.Module, *, before: int | None = None) -> bool:
        """Whether every parameter that had a gradient after the first batch has one; it is older than `before`."""
        for parameter in module.parameters():
            gradient = parameter.grad
            if gradient is None:
                if parameter.requires_grad and before is None and id(parameter) in self._with_gradient:
                    return False
                continue
            if before is None:
                continue
            number = self._recorder.storage_id(gradient)
            if number is None or number >= before:
                return False
            self._with_gradient.add(id(parameter))
        return True

    def is_usable(self, module: torch.nn.Module) -> bool:
        """Whether nothing but autograd handles activations and gradients of a model, on one stream; ask after a call.

        A lazy module has a hook until its first call.
        """
        usable = self._usable.get(module)
        if usable is None:
            usable = self._usable[module] = _is_plain(module) and not max(self._recorder.streams.values(), default=0)
        return usable


def describe_values(tensor: torch.Tensor, values: KnownValues) -> tuple[bool, bytes | None]:
    """(whether it may be a mask, digest of its known values)."""
    known = values.peek(tensor) if isinstance(tensor, FakeTensor) else None
    if known is None:
        return False, None
    is_mask = known.dtype in _MASK_DTYPES and not bool(((known != 0) & (known != 1)).any())
    return is_mask, digest(known)


_UNKNOWN = _Batch(None, {}, (0, 0), ())
"""A batch that none is compared with."""


def _with_sorted_frees(events: Iterable[Any]) -> list[Any]:
    """Events with successive frees in one order: that of autograd's graph, and of its thread, is not fixed."""
    found: list[Any] = []
    for is_free, run in itertools.groupby(events, key=lambda event: event[0] == "free"):
        part = list(run)
        found += sorted(part, key=lambda event: (event[1] is None, event[1] or 0, event[2])) if is_free else part
    return found


def _is_plain(module: torch.nn.Module) -> bool:
    """Whether nothing but autograd handles activations and gradients."""
    for part in module.modules():
        if type(part).__module__.startswith(_WRAPPERS) or any(getattr(part, hooks) for hooks in _HOOKS):
            return False
    return not any(_is_handled(parameter) for parameter in module.parameters())


def _is_handled(parameter: torch.Tensor) -> bool:
    hooks = parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None)
    return bool(hooks) or hasattr(parameter, "_local_tensor")


def _cpu_values(tensors: list[torch.Tensor]) -> tuple[bytes, ...]:
    """Digests of tensors on the CPU, such as lengths: code may read them as it likes."""
    on_cpu = (tensor for tensor in tensors if tensor.device.type == "cpu" and not tensor.dtype.is_floating_point)
    return tuple(digest(tensor) for tensor in on_cpu)
