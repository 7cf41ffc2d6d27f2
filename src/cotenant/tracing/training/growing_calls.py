"""Generation token by token with any model: of calls whose inputs grow evenly, one of 16 is traced.

`repeated_decoding` knows the caches of transformers. Here the inputs tell: texts that grow by a token, a script's own
cache in tuples, lists, dicts or dataclasses, a position that is counted. Three calls in a row must have recorded events
of the same kinds in the same order, read as many values, and have returned tensors whose sizes grow evenly, too.
Another call then makes results of the sizes that follow; every size that a result has is in the trace, and what lives
within such a call is that of a traced one, up to 15 tokens shorter.

Not replaced are calls with gradients, calls that leave something beside their results, as a module does that holds its
own cache, and calls with inputs or results of other types.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import KnownValues, has_known_values
from cotenant.tracing.recorder import TraceRecorder

_MIN_ALIKE = 3
_MIN_ALIKE_IN_TRAINING_MODE = 16
_TRACED_ONE_OF = 16
_MAX_LEAVES = 1_000
_CONSTANTS = (bool, float, str, type(None), torch.dtype, torch.device, torch.nn.Module)

Sizes = tuple[int, ...]


class GrowingCalls:
    """The latest calls of models without gradients, by module."""

    def __init__(self, recorder: TraceRecorder, values: KnownValues) -> None:
        self._recorder = recorder
        self._values = values
        self._latest: weakref.WeakKeyDictionary[torch.nn.Module, _Growing] = weakref.WeakKeyDictionary()

    def call(self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """(True, its result) of a call that grows evenly; (False, None) of another, which has not been called."""
        inputs = _Leaves.of((args, kwargs))
        if inputs is None:
            self._latest.pop(module, None)
            return False, None
        known = self._latest.setdefault(module, _Growing())
        if not known.follows(inputs) or self._recorder.any_live(known.left):
            known.forget(inputs)
            return False, None
        wanted = _MIN_ALIKE_IN_TRAINING_MODE if module.training else _MIN_ALIKE
        if known.count >= wanted and known.count % _TRACED_ONE_OF:
            known.count += 1
            return True, known.result(inputs)
        before, reads = self._recorder.position(), self._values.reads
        result = original(module, *args, **kwargs)
        events, left = self._recorder.events_since(before, older=True)
        kinds = tuple(event[::3] for event in events or () if isinstance(event, tuple))  # (action, module)
        known.add((kinds, self._values.reads - reads), inputs, result, left, self._recorder)
        return True, result


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
                sizes += leaf.shape
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
    if dataclasses.is_dataclass(made_of):
        result: Any = object.__new__(made_of)  # type: ignore[arg-type]
        vars(result).update(zip(keys, values, strict=True))
        return result
    return made_of(zip(keys, values, strict=True))


class _Growing:
    """Calls in a row, each larger by the same sizes.

    Attributes:
        count: calls in this row; those before the first that was compared are not counted.
        left: storages that the last traced call left beside its results.
    """

    def __init__(self) -> None:
        self.forget(None)

    def forget(self, inputs: _Leaves | None) -> None:
        """The row begins with this call."""
        self.count = 0
        self.left: set[int] = set()
        self._inputs = None if inputs is None else (inputs.kind, inputs.sizes)
        self._growth: Sizes | None = None
        self._events: object = None
        self._results: tuple[object, Sizes] | None = None
        self._results_growth: Sizes | None = None
        self._untraced = 0
        self._make: Callable[[_Leaves, Sizes], Any] | None = None

    def follows(self, inputs: _Leaves) -> bool:
        """Whether a call goes on with the row: it is larger than the one before, and by as much as that one was."""
        if self._inputs is None or self._inputs[0] != inputs.kind:
            return False
        growth = tuple(after - before for before, after in zip(self._inputs[1], inputs.sizes, strict=True))
        if not any(growth) or min(growth) < 0 or self._growth not in (None, growth):
            return False
        self._inputs, self._growth = (inputs.kind, inputs.sizes), growth
        self._untraced += 1
        return True

    def add(self, events: object, inputs: _Leaves, result: Any, left: set[int], recorder: TraceRecorder) -> None:
        """Record a call that was traced."""
        results = _Leaves.of(result)
        owned = [recorder.storage_id(tensor) for tensor in results.tensors] if results else []
        if results is None or None in owned or any(map(has_known_values, results.tensors)):
            self.count, self._results = 0, None
            return
        growth = self._growth_of(results)
        is_alike = events == self._events and growth is not None and self._results_growth in (None, growth)
        self.count = self.count + 1 if is_alike else 1
        self._events, self._results, self._untraced = events, (results.kind, results.sizes), 0
        self._results_growth = growth
        self.left = left.difference(owned)
        self._make = _maker(inputs, results, owned)

    def _growth_of(self, results: _Leaves) -> Sizes | None:
        """How much the results grow by call; None: not evenly."""
        if self._results is None or self._results[0] != results.kind or not self._untraced:
            return None
        differences = [after - before for before, after in zip(self._results[1], results.sizes, strict=True)]
        if any(difference % self._untraced for difference in differences):
            return None
        return tuple(difference // self._untraced for difference in differences)

    def result(self, inputs: _Leaves) -> Any:
        """A result as it follows on the last one that was traced."""
        assert self._results is not None
        assert self._results_growth is not None
        assert self._make is not None
        grown = zip(self._results[1], self._results_growth, strict=True)
        return self._make(inputs, tuple(size + growth * self._untraced for size, growth in grown))


def _maker(inputs: _Leaves, results: _Leaves, owned: list[int | None]) -> Callable[[_Leaves, Sizes], Any]:
    """What makes results of other sizes: new tensors, and inputs where the results are inputs.

    Results that are parts of one storage get one again, which grows as they do.
    """
    sources = [next((place for place, given in enumerate(inputs.tensors) if given is t), None) for t in results.tensors]
    parts = [(t.numel(), t.untyped_storage().nbytes() // t.element_size()) for t in results.tensors]
    structure, kinds = results.kind

    def make(given: _Leaves, sizes: Sizes) -> Any:
        numbers, places = iter(sizes), itertools.count()
        storages: dict[object, torch.Tensor] = {}

        def tensor(kind: _Tensor) -> torch.Tensor:
            place = next(places)
            shape = [next(numbers) for _ in range(kind.dim)]
            source = sources[place]
            if source is not None:
                return given.tensors[source]
            (numel, whole), needed = parts[place], math.prod(shape)
            storage = storages.get(owned[place])
            if storage is None or storage.numel() < needed or storage.dtype != kind.dtype:
                whole = max(needed, whole * needed // max(numel, 1))
                storage = storages[owned[place]] = torch.empty(whole, dtype=kind.dtype, device=kind.device)
            return storage[:needed].view(shape)

        def leaf(kind: object) -> object:
            if isinstance(kind, _Tensor):
                return tensor(kind)
            return next(numbers) if kind is int else kind[1]  # type: ignore[index]

        return _unflatten(structure, map(leaf, kinds))

    return make
