"""What operators gave before: a result that depends on nothing but shapes is the same for the same shapes.

PyTorch's meta kernels take 20 us to 5 ms for that, many being written in Python; a model asks the same of every layer
and in every step. Kept are operators that make new tensors or write to their first argument, and whose arguments are
tensors of one GPU and plain values. Views are not: they share what they are views of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_MAX_ENTRIES = 1 << 14  # calls; a script that has no end of different ones starts again with none
_NUMBER_TYPES = frozenset((int, float, bool))
_HASHABLE_TYPES = frozenset((str, type(None), torch.dtype, torch.layout, torch.memory_format))
_UNCACHEABLE: Any = object()
_RETURNS_FIRST_ARGUMENT: Any = object()
_MISSING: Any = object()
_IGNORED_KEYWORDS = frozenset(("device", "pin_memory", "generator"))
_REPLACES_STORAGE = ("set_", "resize")
_SHAPE_POSITION = 3  # where a key tells the shape of the first argument, and after it the strides


class MetaCache:
    """Results by operator, shapes, strides, types and values."""

    def __init__(self) -> None:
        self._results: dict[tuple[Any, ...], Any] = {}
        self._lasting: dict[Any, bool] = {}

    def key_of(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> tuple[Any, ...] | None:
        """What a call is known by; None for one that is never kept. Where the result goes to is no part of it."""
        lasting = self._lasting.get(func)
        if lasting is None:
            lasting = self._lasting[func] = _is_cacheable(func)
        if not lasting:
            return None
        parts = [id(func), torch.get_default_dtype()]  # the operator is kept above; its hash is computed in Python
        if not _append_key(parts, args, device):
            return None
        for name, value in kwargs.items():
            if name not in _IGNORED_KEYWORDS:
                parts.append(name)
                if not _append_key(parts, (value,), device):
                    return None
        return tuple(parts)

    def find(self, mode: Any, key: tuple[Any, ...], args: Any, device: torch.device) -> Any:
        """The result, made anew on `device`; NotImplemented if the call was not seen before."""
        kept = self._results.get(key, _UNCACHEABLE)
        if kept is _UNCACHEABLE:
            return NotImplemented
        if kept is _RETURNS_FIRST_ARGUMENT:
            return args[0]
        return _make_output(mode, kept, device)

    def keep(self, key: tuple[Any, ...], args: Any, out: Any) -> None:
        """Remember what the call gave, if that says all about it."""
        if self._results.get(key, _MISSING) is not _MISSING:
            return
        if len(self._results) >= _MAX_ENTRIES:
            self._results.clear()
        if isinstance(out, torch.Tensor) and args and out is args[0]:
            self._results[key] = (
                _RETURNS_FIRST_ARGUMENT
                if key[_SHAPE_POSITION : _SHAPE_POSITION + 2] == (out.shape, out.stride())
                else _UNCACHEABLE
            )
            return
        storages = {each.untyped_storage()._cdata for each in _tensors(args)}
        self._results[key] = _output_spec(out, storages)


def _is_cacheable(func: Any) -> bool:
    """Whether `func` makes new tensors only, or writes to its first argument only, and leaves its shape."""
    if torch.Tag.inplace_view in func.tags or func._opname.startswith(_REPLACES_STORAGE):
        return False
    schema = func._schema
    written = [each.alias_info is not None for each in schema.arguments]
    if any(written[1:]) or not schema.returns:
        return False
    if written[:1] == [True]:
        first, result = schema.arguments[0].alias_info, schema.returns[0].alias_info
        return len(schema.returns) == 1 and first.is_write and result is not None and result.is_write
    return all(each.alias_info is None for each in schema.returns)


def _append_key(parts: list[Any], values: Iterable[Any], device: torch.device) -> bool:
    for value in values:
        kind = type(value)
        if kind is FakeTensor or issubclass(kind, FakeTensor):
            if value.fake_device != device or value.layout is not torch.strided or value.dtype.is_complex:
                return False
            parts += (value.dtype, value.shape, value.stride())
        elif kind in _NUMBER_TYPES:
            parts += (kind, value)  # 1, 1.0 and True are one key otherwise
        elif kind in _HASHABLE_TYPES:
            parts.append(value)
        elif kind is list or kind is tuple:
            parts += (kind, len(value))
            if not _append_key(parts, value, device):
                return False
        else:
            return False
    return True


def _output_spec(out: Any, storages: set[int]) -> Any:
    """What `_make_output` needs; `_UNCACHEABLE` where an output is more than a new tensor. `storages`: that are not new."""
    if isinstance(out, (list, tuple)):
        kept = [_output_spec(each, storages) for each in out]
        return _UNCACHEABLE if any(each is _UNCACHEABLE for each in kept) else (type(out), kept)
    if out is None:
        return None
    if type(out) is not FakeTensor or out.layout is not torch.strided or out.dtype.is_complex:
        return _UNCACHEABLE
    storage = out.untyped_storage()
    spans = sum((size - 1) * stride for size, stride in zip(out.shape, out.stride(), strict=True)) + 1
    nbytes = spans * out.element_size() if out.numel() else 0
    if out.storage_offset() or storage._cdata in storages or storage.nbytes() != nbytes:
        return _UNCACHEABLE
    storages.add(storage._cdata)
    return out.shape, out.stride(), out.dtype


def _make_output(mode: Any, kept: Any, device: torch.device) -> Any:
    if kept is None:
        return None
    if len(kept) == 3:
        return mode.empty_strided(*kept, device)
    kind, each = kept
    return kind([_make_output(mode, one, device) for one in each])


def _tensors(values: Iterable[Any]) -> Iterable[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)
