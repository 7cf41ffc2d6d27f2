"""Real values of small integer tensors that are on the fake GPU.

A batch's masks, labels and lengths come from the CPU, where their values were known. They stay known: each operator
on known integers is computed for real, beside the fake one. So a branch on a mask and a shape that depends on a
mask are what they are on a GPU. Floating-point values are never kept: they come out of the model, which is not run.
Some integers are believed instead (see `routing`), and what follows from them is believed as well.

Values belong to a storage, so that views and writes in place see each other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_aten = torch.ops.aten

# Bigger ones are masks of attention and the like, whose values decide nothing; computing them would cost seconds.
_MOST_ELEMENTS = 1 << 20
_MOST_BELIEVED = 1 << 24  # of which expert is whose, on which the memory of a mixture depends
_EXACT = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
_ATTRIBUTE = "_cotenant_values"
_BELIEVED = "_cotenant_believed"
_OVERWRITES = frozenset((_aten.copy_.default, _aten.fill_.Scalar, _aten.zero_.default, _aten.random_.default))
_ABSORBING = {
    **dict.fromkeys(("__or__", "bitwise_or", "logical_or"), True),
    **dict.fromkeys(("__and__", "bitwise_and", "logical_and"), False),
}
"""What an operand must be for the other not to matter."""
_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)


class Values:
    """What is known of the values of fake tensors."""

    most_believed = _MOST_BELIEVED

    def __init__(self) -> None:
        self._writes: dict[Any, tuple[int, ...] | None] = {}

    def of(self, tensor: Any) -> torch.Tensor | None:
        """The values, as a CPU tensor over the same layout; None where they are not known. Not to be written to."""
        if not isinstance(tensor, FakeTensor):
            return tensor if tensor.device.type == "cpu" else None
        if tensor.dtype not in _EXACT:
            return None
        flat = getattr(tensor.untyped_storage(), _ATTRIBUTE, None)
        if flat is None:
            return None
        return torch.empty(0, dtype=tensor.dtype).set_(flat, tensor.storage_offset(), tensor.shape, tensor.stride())

    def believe(self, tensor: FakeTensor, value: torch.Tensor) -> None:
        """Take `value` for the values of `tensor`, which nobody computed."""
        self._give(tensor, value)
        setattr(tensor.untyped_storage(), _BELIEVED, True)

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Do for the values what `func` did for the fake tensors."""
        try:
            writes = self._writes[func]
        except KeyError:
            writes = self._writes[func] = _writes(func)
        if writes is None:
            return
        if writes:
            self._write(func, args, kwargs, writes)
        elif any(_is_kept(each, _MOST_BELIEVED) for each in _leaves(out)):
            self._compute(func, args, kwargs, out)

    def _compute(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        believed = any(is_believed(each) for each in _leaves(args))
        most = _MOST_BELIEVED if believed else _MOST_ELEMENTS
        if not any(_is_kept(each, most) for each in _leaves(out)):
            return
        try:
            values = func(*self._known(args), **self._known(_on_cpu(kwargs)))
        except _Unknown:
            values = self._decided(func, args, out)
            if values is None:
                return
        except _ERRORS:
            return
        for fake, value in zip(_leaves(out), _leaves(values), strict=True):
            if _is_kept(fake, most) and fake.shape == value.shape:
                (self.believe if believed else self._give)(fake, value)

    def _decided(self, func: Any, args: Any, out: Any) -> torch.Tensor | None:
        """What one operand decides alone: a truth value or-ed with true, or and-ed with false."""
        absorbing = _ABSORBING.get(func._opname)
        if absorbing is None or (out.dtype is not torch.bool and absorbing):
            return None
        for each in args:
            known = self.of(each) if isinstance(each, torch.Tensor) and each.numel() <= _MOST_ELEMENTS else None
            if known is not None and not is_believed(each) and bool((known == absorbing).all()):
                return torch.full(out.shape, absorbing, dtype=out.dtype)
        return None

    def _write(self, func: Any, args: Any, kwargs: Any, writes: tuple[int, ...]) -> None:
        targets = [each for index in writes if index < len(args) for each in _leaves(args[index])]
        targets += [each for key in ("out", "values", "indices") if key in kwargs for each in _leaves(kwargs[key])]
        kept = [each for each in targets if isinstance(each, FakeTensor) and each.dtype in _EXACT]
        if not kept:
            return
        if func in _OVERWRITES and _is_kept(kept[0]) and _covers(kept[0]) and self.of(kept[0]) is None:
            self._give(kept[0], torch.zeros((), dtype=kept[0].dtype).expand(kept[0].shape))
        if any(is_believed(each) for each in _leaves(args)):
            for each in kept:
                setattr(each.untyped_storage(), _BELIEVED, True)
        try:
            func(*self._known(args), **self._known(kwargs))
        except (_Unknown, *_ERRORS):
            for each in kept:
                setattr(each.untyped_storage(), _ATTRIBUTE, None)

    def _give(self, tensor: FakeTensor, value: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        flat = torch.UntypedStorage(storage.nbytes())
        here = torch.empty(0, dtype=tensor.dtype).set_(flat, tensor.storage_offset(), tensor.shape, tensor.stride())
        here.copy_(value)
        setattr(storage, _ATTRIBUTE, flat)

    def _known(self, value: Any) -> Any:
        """`value` with every fake tensor replaced by its values."""
        if isinstance(value, torch.Tensor):
            known = self.of(value)
            if known is None or known.numel() > (_MOST_BELIEVED if is_believed(value) else _MOST_ELEMENTS):
                raise _Unknown
            return known
        if isinstance(value, (list, tuple)):
            return type(value)([self._known(each) for each in value])
        if isinstance(value, dict):
            return {key: self._known(each) for key, each in value.items()}
        return value


def is_believed(tensor: Any) -> bool:
    """Whether the values of a tensor are believed, not computed."""
    return isinstance(tensor, FakeTensor) and getattr(tensor.untyped_storage(), _BELIEVED, False)


class _Unknown(Exception):
    """A value that is needed is not known."""


def _writes(func: Any) -> tuple[int, ...] | None:
    """Positions of the arguments that `func` writes to; none if it makes new ones; None if it only looks at them.

    A function without given values, such as `empty`, counts as the last kind.
    """
    schema = func._schema
    if func._opname.startswith(("empty", "new_empty")) or torch.Tag.data_dependent_output in func.tags:
        return None
    writes = tuple(i for i, each in enumerate(schema.arguments) if each.alias_info and each.alias_info.is_write)
    if writes:
        return writes
    is_view = any(each.alias_info is not None for each in schema.returns)
    return None if is_view else ()


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _is_kept(value: Any, most: int = _MOST_ELEMENTS) -> bool:
    return isinstance(value, FakeTensor) and value.dtype in _EXACT and value.numel() <= most


def _covers(tensor: torch.Tensor) -> bool:
    """Whether the tensor is all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") is not None else kwargs
