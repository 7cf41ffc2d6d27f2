"""Generation token by token with any model: of calls whose inputs grow evenly, one of 16 is traced.

`repeated_decoding` knows the caches of transformers. Here the inputs tell: texts that grow by a token, a script's own
cache in tuples, lists, dicts or dataclasses, a position that is counted. Four calls in a row must have recorded the
same events but for sizes, of which the first three foretell the fourth: a size grows by as much from call to call, or
by a difference that grows so, as that of attention does. Another call then makes results of the sizes that follow, and
records the events that follow. Each traced one must have the events that were foretold.

Beyond `_MAX_EVENTS` a replaced call leaves no events but those of its results: what lives within such a call is that of
a traced one, up to 15 tokens shorter.

Calls that read values, as of a mask that may be all ones, must read the same in a row; of a replaced one, inputs whose
known values are all equal have the value of those before.

Not replaced are calls with gradients, calls that read unknown values, that free what was there before, or leave
something beside their results, as a module does that holds its own cache, and calls with inputs or results of other
types.
"""

from __future__ import annotations

import dataclasses
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import KnownValues, has_known_values
from cotenant.tracing.kernel_work import COUNTED_STEPS
from cotenant.tracing.recorded_span import RecordedSpan
from cotenant.tracing.recorder import TraceRecorder

_MIN_ALIKE = 4
_MIN_ALIKE_IN_TRAINING_MODE = 16
_TRACED_ONE_OF = 16
_MAX_LEAVES = 1_000
_MAX_EVENTS = 100_000  # of the trace
_CONSTANTS = (bool, float, str, type(None), torch.dtype, torch.device, torch.nn.Module)

Sizes = tuple[int, ...]


class GrowingCalls:
    """The latest calls of models without gradients, by module."""

    def __init__(self, recorder: TraceRecorder, values: KnownValues) -> None:
        self._recorder = recorder
        self._values = values
        self._latest: weakref.WeakKeyDictionary[torch.nn.Module, _GrowingRow] = weakref.WeakKeyDictionary()

    def call(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        """The result of `original`, or one as it would follow; `original` may replace calls in another way."""
        inputs = _Leaves.of((args, kwargs))
        if inputs is None:
            self._latest.pop(module, None)
            return original(module, *args, **kwargs)
        row = self._latest.setdefault(module, _GrowingRow())
        if not row.follows(inputs) or self._recorder.any_live(row.left):
            row.begin(inputs)
            return original(module, *args, **kwargs)
        wanted = _MIN_ALIKE_IN_TRAINING_MODE if module.training else _MIN_ALIKE
        is_due = row.count >= wanted and row.count % _TRACED_ONE_OF
        if is_due and (not row.reads or row.constants == self._constants(inputs)):
            row.count += 1
            return row.result(inputs, self._recorder)
        constants = self._constants(inputs)  # before the call may write to them
        before, step = self._recorder.position(), self._recorder.steps
        kernels = self._recorder.kernels.counted(step)
        outer, self._values.read_log = self._values.read_log, []
        try:
            result = original(module, *args, **kwargs)
        finally:
            reads, self._values.read_log = self._values.read_log or [], outer
            if outer is not None:
                outer.extend(reads)
        row.kernels = self._recorder.kernels.counted(step) - kernels
        if None in reads:
            row.begin(inputs)
        else:
            row.note_reads(reads, constants)
            row.add(self._recorder.span_since(before), inputs, result, self._recorder)
        return result

    def _constants(self, inputs: _Leaves) -> list[object]:
        """Of each tensor: its value if all are known and equal, whether they are known otherwise."""
        found: list[object] = []
        for tensor in inputs.tensors:
            known = self._values.peek(tensor)
            is_constant = known is not None and known.numel() > 0 and bool((known == known.flatten()[0]).all())
            found.append(known.flatten()[0].item() if known is not None and is_constant else known is not None)
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class _Leaves:
    """Inputs or results, without their structure.

    Attributes:
        tensors: in their order.
        sizes: of all tensors, and integers.
        kind: what calls in a row have in common: the structure, and of each leaf its constant or its type.
    """

    tensors: tuple[FakeTensor, ...]
    sizes: Sizes
    kind: tuple[object, tuple[object, ...]]

    @classmethod
    def of(cls, value: object) -> _Leaves | None:
        """None where something of another type is among them, or too much."""
        leaves: list[object] = []
        structure = _flatten(value, leaves)
        tensors = tuple(leaf for leaf in leaves if isinstance(leaf, FakeTensor))
        if len(leaves) > _MAX_LEAVES or not tensors:
            return None
        sizes: list[int] = []
        kinds: list[object] = []
        for leaf in leaves:
            if isinstance(leaf, FakeTensor) and leaf.layout is torch.strided:
                sizes += (*leaf.shape, *leaf.stride(), leaf.storage_offset(), leaf.untyped_storage().nbytes())
                kinds.append(_Tensor(leaf.dim(), leaf.dtype, leaf.device))
            elif type(leaf) is int:
                sizes.append(leaf)
                kinds.append(int)
            elif isinstance(leaf, _CONSTANTS):
                kinds.append((type(leaf), leaf))
            else:
                return None
        return cls(tensors, tuple(sizes), (structure, tuple(kinds)))


class _Tensor(NamedTuple):
    dim: int
    dtype: torch.dtype
    device: torch.device


def _flatten(value: object, leaves: list[object]) -> object:
    """The structure of a value, whose leaves are added to `leaves`; (class, keys, parts), or None for a leaf."""
    if len(leaves) > _MAX_LEAVES:
        return None
    if isinstance(value, (tuple, list)):
        return type(value), None, tuple(_flatten(part, leaves) for part in value)
    if isinstance(value, dict) and all(isinstance(key, (str, int)) for key in value):
        return type(value), tuple(value), tuple(_flatten(part, leaves) for part in value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        parts = vars(value)
        return type(value), tuple(parts), tuple(_flatten(part, leaves) for part in parts.values())
    leaves.append(value)
    return None


def _unflatten(structure: Any, leaves: Iterator[object]) -> Any:
    if not isinstance(structure, tuple):
        return next(leaves)
    made_of: Any
    made_of, keys, parts = structure
    values = [_unflatten(part, leaves) for part in parts]
    if keys is None:
        return made_of(*values) if hasattr(made_of, "_fields") else made_of(values)
    has_fields, has_items = dataclasses.is_dataclass(made_of), issubclass(made_of, dict)
    if has_fields and has_items:  # transformers' `ModelOutput`
        return made_of(**dict(zip(keys, values, strict=True)))
    if has_fields:
        result = object.__new__(made_of)
        vars(result).update(zip(keys, values, strict=True))
        return result
    return made_of(zip(keys, values, strict=True))


class _Traced(NamedTuple):
    """One call.

    Attributes:
        kind: what alike ones have in common: events without sizes, what their results are.
        numbers: sizes of its storages, numbers in its library calls, and sizes of its results.
    """

    kind: object
    numbers: Sizes


class _GrowingRow:
    """Calls in a row, each larger by the same sizes.

    Attributes:
        count: alike ones among the last traced calls, and those that were replaced since.
        left: storages that the last traced call left beside its results.
        kernels: of the last traced call.
        reads: values that each traced call read.
        constants: of the last traced call's inputs, where it read values.
    """

    def __init__(self) -> None:
        self.begin(None)

    def begin(self, inputs: _Leaves | None) -> None:
        """The row begins behind this call."""
        self.count = 0
        self.left: set[int] = set()
        self.kernels: Counter[Any] = Counter()
        self.reads: list[bytes | None] = []
        self.constants: list[object] = []
        self._inputs = None if inputs is None else (inputs.kind, inputs.sizes)
        self._growth: Sizes | None = None
        self._latest: list[_Traced] = []
        self._since = 0  # calls since the last of `_latest`
        self._span: RecordedSpan | None = None
        self._calls: list[tuple[int, object]] = []
        self._make: Callable[[_Leaves, Iterator[int]], Any] | None = None

    def follows(self, inputs: _Leaves) -> bool:
        """Whether a call goes on with the row: it is larger than the one before, and by as much as that one was."""
        if self._inputs is None or self._inputs[0] != inputs.kind:
            return False
        growth = tuple(after - before for before, after in zip(self._inputs[1], inputs.sizes, strict=True))
        if not any(growth) or min(growth) < 0 or self._growth not in (None, growth):
            return False
        self._inputs, self._growth = (inputs.kind, inputs.sizes), growth
        self._since += 1
        return True

    def note_reads(self, reads: list[bytes | None], constants: list[object]) -> None:
        """Record what a traced call read; the calls before were not alike if it read something else."""
        if (reads or self.reads) and (reads, constants) != (self.reads, self.constants):
            self.count, self._latest = 0, []
        self.reads, self.constants = reads, constants

    def add(self, span: RecordedSpan, inputs: _Leaves, result: Any, recorder: TraceRecorder) -> None:
        """Record a call that was traced."""
        results = _Leaves.of(result)
        owned = [recorder.storage_id(tensor) for tensor in results.tensors] if results else []
        if results is None or None in owned or any(map(has_known_values, results.tensors)):
            self.count, self._latest = 0, []
            return
        sources = [_place_of(tensor, inputs.tensors) for tensor in results.tensors]
        made = [number for number, source in zip(owned, sources, strict=True) if source is None and number is not None]
        frees_older = any(action == "free" and number < span.first for action, number, *_ in span.actions)
        if frees_older or min(made, default=span.first) < span.first:
            self.count, self._latest = 0, []
            return
        traced, calls = _describe(span, results, owned, sources, recorder)
        is_foretold = len(self._latest) == 3 and traced == _Traced(self._latest[-1].kind, self._foretold())
        self.left = set(span.left).difference(owned)
        if is_foretold:
            self.count += 1
            return
        if self._since > 1 or (self._latest and self._latest[-1].kind != traced.kind):
            self._latest = []
        self._latest, self._since = [*self._latest[-2:], traced], 0
        self.count = len(self._latest)
        self._span, self._calls, self._make = span, calls, _maker(results, owned, sources)

    def _foretold(self) -> Sizes:
        """The numbers of the present call, by the last three: differences are even, or grow evenly."""
        first, second, third = (traced.numbers for traced in self._latest)
        n, more = self._since, self._since * (self._since + 1) // 2
        return tuple(c + n * (c - b) + more * (c - 2 * b + a) for a, b, c in zip(first, second, third, strict=True))

    def result(self, inputs: _Leaves, recorder: TraceRecorder) -> Any:
        """A result of the present call, whose events are recorded."""
        span, make = self._span, self._make
        assert span is not None
        assert make is not None
        numbers = iter(self._foretold())
        sizes = list(itertools.islice(numbers, span.end - span.first))
        calls = [recorder.library_calls.alike(number, _with_numbers(kind, numbers)) for number, kind in self._calls]
        if recorder.steps < COUNTED_STEPS and recorder.phase != "load":
            recorder.kernels.count_again(recorder.steps, self.kernels)
        is_long = recorder.event_count > _MAX_EVENTS
        recorder.pause()
        result = make(inputs, numbers)
        recorder.resume(None if is_long else _with_sizes(span, sizes, iter(calls)))
        return result


def _place_of(tensor: torch.Tensor, tensors: Sequence[torch.Tensor]) -> int | None:
    return next((place for place, other in enumerate(tensors) if other is tensor), None)


def _describe(
    span: RecordedSpan, results: _Leaves, owned: list[int | None], sources: list[int | None], recorder: TraceRecorder
) -> tuple[_Traced, list[tuple[int, object]]]:
    """A call, and its library calls: (number, parameters without numbers)."""
    numbers: list[int] = []
    kinds: list[object] = []
    for action, number, nbytes, phase, module, stream, device in span.actions:
        if action == "alloc":
            numbers.append(nbytes)
        kinds.append((action, number - span.first if action == "free" else 0, phase, module, stream, device))
    calls: list[tuple[int, object]] = []
    for action, number, *_ in span.actions:
        if action == "op":
            found = recorder.library_calls[number]
            calls.append((number, _without_numbers(found.params, numbers)))
            kinds.append((found.kind, found.thread, calls[-1][1]))
    places = [
        None if number is None or source is not None else number - span.first
        for number, source in zip(owned, sources, strict=True)
    ]
    left = [number - span.first for number in span.left]
    kind = (kinds, left, places, sources, results.kind)
    return _Traced(kind, (*numbers, *results.sizes)), calls


def _without_numbers(value: Any, numbers: list[int]) -> object:
    """Parameters of a library call, whose numbers are added to `numbers`."""
    if type(value) is int:
        numbers.append(value)
        return int
    if isinstance(value, Mapping):
        return tuple((name, _without_numbers(part, numbers)) for name, part in value.items())
    if isinstance(value, (tuple, list)):
        return (type(value), *(_without_numbers(part, numbers) for part in value))
    return (None, value)


def _with_numbers(kind: Any, numbers: Iterator[int]) -> dict[str, object]:
    """The parameters again, with other numbers."""

    def part(kind: Any) -> object:
        if kind is int:
            return next(numbers)
        return kind[1] if kind[0] is None else kind[0](part(below) for below in kind[1:])

    return {name: part(value) for name, value in kind}


def _with_sizes(span: RecordedSpan, sizes: list[int], calls: Iterator[int]) -> RecordedSpan:
    """The span with storages of other sizes, and other library calls."""
    made: list[Any] = []
    for entry in span.actions:
        action, number, _, *more = entry
        if action == "alloc":
            made.append((action, number, sizes[number - span.first], *more))
        else:
            made.append((action, next(calls), 0, *more) if action == "op" else entry)
    return span._replace(actions=made, sizes=sizes)


def _maker(
    results: _Leaves, owned: list[int | None], sources: list[int | None]
) -> Callable[[_Leaves, Iterator[int]], Any]:
    """What makes results of other sizes: new tensors, and inputs where the results are inputs."""
    structure, kinds = results.kind

    def make(given: _Leaves, numbers: Iterator[int]) -> Any:
        places = itertools.count()
        storages: dict[object, torch.Tensor] = {}

        def tensor(kind: _Tensor) -> torch.Tensor:
            place = next(places)
            shape, strides = _take(numbers, kind.dim), _take(numbers, kind.dim)
            offset, nbytes = next(numbers), next(numbers)
            source = sources[place]
            if source is not None:
                return given.tensors[source]
            storage = storages.get(owned[place])
            if storage is None:
                storage = torch.empty(nbytes // kind.dtype.itemsize, dtype=kind.dtype, device=kind.device)
                storages[owned[place]] = storage
            return storage.view(kind.dtype).as_strided(shape, strides, offset)

        def leaf(kind: object) -> object:
            if isinstance(kind, _Tensor):
                return tensor(kind)
            return next(numbers) if kind is int else kind[1]  # type: ignore[index]

        return _unflatten(structure, map(leaf, kinds))

    return make


def _take(numbers: Iterable[int], count: int) -> list[int]:
    return list(itertools.islice(numbers, count))
