"""What a model returned, without its memory: to make another result like it.

The copy has the same classes, so what a script reads of it is there; its tensors are new, share storages as those of
the original do, and backward ends at them.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import has_known_values
from cotenant.tracing.recorder import TraceRecorder

_MAX_DEPTH = 6


class _View(NamedTuple):
    """A tensor of a result, as a view of one of its storages."""

    storage: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool


_Block = tuple[int, torch.device]
"""Bytes of a storage, and where it is."""


class _Slot:
    """Stands in a template where the result has a tensor."""


class _EndOfGraph(torch.autograd.Function):
    """Gives a tensor a place in autograd's graph, which holds other tensors, and the graphs of those behind it."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, held: Sequence[torch.Tensor], *behind: torch.Tensor) -> torch.Tensor:
        ctx.held = held
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, ...]:
        return (None,) * len(ctx.needs_input_grad)


class ResultTemplate:
    """A result by its classes, plain values, views and storages.

    Attributes:
        storages: numbers in the trace of those that it makes.
    """

    def __init__(self, result: Any, slots: dict[int, _Slot], views: list[_View], blocks: dict[int, _Block]) -> None:
        self._result = result
        self._slots = list(slots.values())
        self._views = views
        self._blocks = blocks
        self.storages = frozenset(blocks)

    @classmethod
    def of(
        cls, result: Any, recorder: TraceRecorder, first: int, saved: Mapping[int, _Block] = MappingProxyType({})
    ) -> ResultTemplate | None:
        """The template of a result; None where a tensor has known values or a storage older than `first`.

        `saved`: what autograd's graph holds beside it, by number.
        """
        tensors: dict[int, torch.Tensor] = {}
        try:
            for tensor in _tensors(result, 0):
                tensors[id(tensor)] = tensor
        except ValueError:
            return None
        views: list[_View] = []
        blocks = dict(saved)
        for tensor in tensors.values():
            if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided or has_known_values(tensor):
                return None
            number = recorder.storage_id(tensor)
            if number is None or number < first:
                return None
            blocks[number] = tensor.untyped_storage().nbytes(), tensor.fake_device
            views.append(_view_of(tensor, number))
        slots = {key: _Slot() for key in tensors}
        try:
            copied = _deep_copy(result, dict(slots))
        except Exception:  # noqa: BLE001 - `__deepcopy__` and `__reduce_ex__` of a library's class raise anything
            # No template: the call runs again each time, which is slower and gives the same trace.
            return None
        return cls(copied, slots, views, blocks)

    def make(self, held: Iterable[torch.Tensor] = (), behind: Iterable[torch.Tensor] = ()) -> Any:
        """A result like the original, with new storages in the order in which the original's were made.

        Its graph holds what was saved and is `held`, and the graphs of the tensors `behind` it.
        """
        with torch.no_grad():
            blocks = {
                number: torch.empty(nbytes, dtype=torch.uint8, device=device)
                for number, (nbytes, device) in sorted(self._blocks.items())
            }
            made = [
                blocks[view.storage].view(view.dtype).as_strided(view.shape, view.strides, view.offset).data
                for view in self._views
            ]
        of_results = {view.storage for view in self._views}
        saved = [*held, *(block for number, block in blocks.items() if number not in of_results)]
        ends = [torch.empty((), requires_grad=True), *(tensor for tensor in behind if tensor.requires_grad)]
        tensors = [
            _EndOfGraph.apply(tensor, saved, *ends) if view.requires_grad else tensor
            for tensor, view in zip(made, self._views, strict=True)
        ]
        return _deep_copy(self._result, {id(slot): tensor for slot, tensor in zip(self._slots, tensors, strict=True)})


def _deep_copy(result: Any, memo: dict[int, Any]) -> Any:
    """A copy with the keys of the original.

    One of a `ModelOutput` of transformers is made of all its attributes. Where the original was made of a dict, as
    accelerate does for mixed precision, its first attribute is that dict, and no key.
    Source: transformers/utils/generic.py, `ModelOutput.__reduce__` (4.38); accelerate/utils/operations.py,
    `recursively_apply`.
    """
    made = copy.deepcopy(result, memo)
    if isinstance(result, dict) and isinstance(made, dict):
        delete = OrderedDict.__delitem__ if isinstance(made, OrderedDict) else dict.__delitem__
        for key in [key for key in made if key not in result]:
            delete(made, key)
    return made


def _view_of(tensor: FakeTensor, number: int) -> _View:
    shape, strides = tuple(tensor.shape), tensor.stride()
    return _View(number, tensor.dtype, shape, strides, tensor.storage_offset(), tensor.requires_grad)


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    """The tensors in a result and in the objects that it consists of.

    Raises:
        ValueError: it is too deep.
    """
    if isinstance(value, torch.Tensor):
        yield value
        return
    if isinstance(value, (str, bytes, int, float, bool, type(None), type, torch.nn.Module)) or callable(value):
        return
    if depth == _MAX_DEPTH:
        raise ValueError
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = list(value)
    else:
        parts = []
    for part in [*parts, *vars(value).values()] if hasattr(value, "__dict__") else parts:
        yield from _tensors(part, depth + 1)
