"""Real values of small tensors that are on the fake GPU.

A batch's masks, labels, boxes and lengths come from the CPU, where their values were known. They stay known: each
operator on known values is computed for real, beside the fake one. So a branch on a mask and a shape that depends on
a mask are what they are on a GPU. Floating-point values are kept of few elements, and only of data and constants:
not of parameters, nor of what is drawn at random, so a model is not run.
Some integers are believed instead (see `routing` and `tokens`), and what follows from them is believed as well.

Values belong to a storage, so that views and writes in place see each other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_aten = torch.ops.aten

# Bigger ones are masks of attention and the like, whose values decide nothing; computing them would cost seconds.
_MAX_ELEMENTS = 1 << 20
_MAX_ASSUMED_ELEMENTS = 1 << 24  # of which expert is whose, on which the memory of a mixture depends
EVEN_ROUTING = "what a router chooses depends on the data; assumed: every expert gets the same number of tokens"
RANDOM_CHOICE = "which elements were drawn is not known, and how many is: nothing to tell"
GENERATED_TEXT = (
    "what a model generates is not known: assumed to run to its largest length, with tokens that are made up"
)
_MAX_FLOATS = 1 << 16  # boxes and times of a batch, not its images
_EXACT_DTYPES = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
_VALUES_ATTRIBUTE = "_cotenant_values"
_ASSUMPTION_ATTRIBUTE = "_cotenant_believed"
_OVERWRITES = frozenset((_aten.copy_.default, _aten.fill_.Scalar, _aten.zero_.default, _aten.random_.default))
_UNSCALE = _aten._amp_foreach_non_finite_check_and_unscale_.default
_ABSORBING = {
    **dict.fromkeys(("__or__", "bitwise_or", "logical_or"), True),
    **dict.fromkeys(("__and__", "bitwise_and", "logical_and"), False),
}
"""What an operand must be for the other not to matter."""
_COMPUTE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)


class KnownValues:
    """What is known of the values of fake tensors."""

    max_assumed_elements = _MAX_ASSUMED_ELEMENTS

    def __init__(self) -> None:
        self._writes: dict[Any, tuple[int, ...] | None] = {}

    def of(self, tensor: Any) -> torch.Tensor | None:
        """The values, as a CPU tensor over the same layout; None where they are not known. Not to be written to."""
        if not isinstance(tensor, FakeTensor):
            return tensor if tensor.device.type == "cpu" else None
        flat = _storage_attribute(tensor, _VALUES_ATTRIBUTE)
        if flat is None:
            return None
        return torch.empty(0, dtype=tensor.dtype).set_(flat, tensor.storage_offset(), tensor.shape, tensor.stride())

    def assume(self, tensor: FakeTensor, value: torch.Tensor, why: str) -> None:
        """Take `value` for the values of `tensor`, which nobody computed; `why` is told where a size depends on it."""
        self._give(tensor, value)
        setattr(tensor.untyped_storage(), _ASSUMPTION_ATTRIBUTE, why)

    def propagate(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Do for the values what `func` did for the fake tensors."""
        try:
            writes = self._writes[func]
        except KeyError:
            writes = self._writes[func] = _written_arguments(func)
        if writes is None:
            return
        if func is _UNSCALE:  # no gradient overflows, so the mark for it stays what it is
            for each in args[0]:
                self.forget(each)
        elif writes:
            self._write(func, args, kwargs, writes)
        elif _any_small_exact(out) or _is_float_data(func, args, out):
            self._compute(func, args, kwargs, out)

    def forget(self, tensor: Any) -> None:
        """The values of a tensor were changed, and nobody knows to what."""
        if _storage_attribute(tensor, _VALUES_ATTRIBUTE) is not None:
            setattr(tensor.untyped_storage(), _VALUES_ATTRIBUTE, None)

    def _compute(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        why = _assumption_in(args)
        most = _max_elements(why)
        if not any(_is_small_exact(each, most) or _is_small_float(each) for each in _leaves(out)):
            return
        try:
            values = func(*self._known(args), **self._known(_on_cpu(kwargs)))
        except _UnknownValue:
            values = self._decided(func, args, out)
            if values is None:
                return
        except _COMPUTE_ERRORS:
            return
        for fake, value in zip(_leaves(out), _leaves(values), strict=True):
            if (_is_small_exact(fake, most) or _is_small_float(fake)) and fake.shape == value.shape:
                self._give(fake, value)
                if why:
                    setattr(fake.untyped_storage(), _ASSUMPTION_ATTRIBUTE, why)

    def _decided(self, func: Any, args: Any, out: Any) -> torch.Tensor | None:
        """What one operand decides alone: a truth value or-ed with true, or and-ed with false."""
        absorbing = _ABSORBING.get(func._opname)
        if absorbing is None or (out.dtype is not torch.bool and absorbing):
            return None
        for each in args:
            known = self.of(each) if isinstance(each, torch.Tensor) and each.numel() <= _MAX_ELEMENTS else None
            if known is not None and not assumption_of(each) and bool((known == absorbing).all()):
                return torch.full(out.shape, absorbing, dtype=out.dtype)
        return None

    def _write(self, func: Any, args: Any, kwargs: Any, writes: tuple[int, ...]) -> None:
        targets = [each for index in writes if index < len(args) for each in _leaves(args[index])]
        targets += [each for key in ("out", "values", "indices") if key in kwargs for each in _leaves(kwargs[key])]
        overwrites = func in _OVERWRITES
        kept = [each for each in targets if _is_tracked(each, overwrites)]
        if not kept:
            return
        if (
            overwrites
            and (_is_small_exact(kept[0]) or _is_small_float(kept[0]))
            and _is_whole_storage(kept[0])
            and self.of(kept[0]) is None
        ):
            self._give(kept[0], torch.zeros((), dtype=kept[0].dtype).expand(kept[0].shape))
        why = _assumption_in(args)
        for each in kept if why else ():
            setattr(each.untyped_storage(), _ASSUMPTION_ATTRIBUTE, why)
        if kept[0].dtype not in _EXACT_DTYPES and _is_random(func):
            self.forget(kept[0])
            return
        try:
            func(*self._known(args), **self._known(kwargs))
        except (_UnknownValue, *_COMPUTE_ERRORS):
            for each in kept:
                self.forget(each)

    def _give(self, tensor: FakeTensor, value: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        flat = torch.UntypedStorage(storage.nbytes())
        here = torch.empty(0, dtype=tensor.dtype).set_(flat, tensor.storage_offset(), tensor.shape, tensor.stride())
        here.copy_(value)
        setattr(storage, _VALUES_ATTRIBUTE, flat)

    def _known(self, value: Any) -> Any:
        """`value` with every fake tensor replaced by its values."""
        if isinstance(value, torch.Tensor):
            known = self.of(value)
            if known is None or known.numel() > _max_elements(assumption_of(value)):
                raise _UnknownValue
            return known
        if isinstance(value, (list, tuple)):
            return type(value)([self._known(each) for each in value])
        if isinstance(value, dict):
            return {key: self._known(each) for key, each in value.items()}
        return value


def assumption_of(tensor: Any) -> str:
    """What is to be told of values that are believed, not computed; empty for others."""
    return _storage_attribute(tensor, _ASSUMPTION_ATTRIBUTE) or ""


def _storage_attribute(tensor: Any, name: str) -> Any:
    """What a storage was given by this name; None without any. A sparse tensor has no storage of its own."""
    if not isinstance(tensor, FakeTensor) or tensor.layout is not torch.strided:
        return None
    return getattr(tensor.untyped_storage(), name, None)


def _assumption_in(args: Any) -> str:
    return next((why for each in _leaves(args) if (why := assumption_of(each))), "")


def _max_elements(why: str) -> int:
    """Elements that are kept of values that are believed, or known."""
    return _MAX_ASSUMED_ELEMENTS if why in (EVEN_ROUTING, RANDOM_CHOICE) else _MAX_ELEMENTS


class _UnknownValue(Exception):
    """A value that is needed is not known."""


def _written_arguments(func: Any) -> tuple[int, ...] | None:
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


def _is_small_exact(value: Any, most: int = _MAX_ELEMENTS) -> bool:
    return isinstance(value, FakeTensor) and value.dtype in _EXACT_DTYPES and value.numel() <= most


def _any_small_exact(out: Any) -> bool:
    if isinstance(out, FakeTensor):
        return _is_small_exact(out, _MAX_ASSUMED_ELEMENTS)
    return any(_is_small_exact(each, _MAX_ASSUMED_ELEMENTS) for each in _leaves(out))


def _is_float_data(func: Any, args: Any, out: Any) -> bool:
    """Whether `out` is few floating-point numbers, made of data and constants alone."""
    if not _is_small_float(out):
        return False
    for each in args:
        if isinstance(each, (list, tuple)):
            if any(_is_unknown(one) for one in _leaves(each)):
                return False
        elif _is_unknown(each):
            return False
    return not _is_random(func)


def _is_small_float(value: Any) -> bool:
    """Whether floating-point values would be kept."""
    if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
        return False
    return value.dtype.is_floating_point and value.numel() <= _MAX_FLOATS


def _is_unknown(value: Any) -> bool:
    """Whether it is a tensor whose values are not known, or which a model learns."""
    if not isinstance(value, torch.Tensor):
        return False
    if value.requires_grad:
        return True
    return isinstance(value, FakeTensor) and _storage_attribute(value, _VALUES_ATTRIBUTE) is None


def _is_tracked(value: Any, overwritten: bool) -> bool:
    """Whether a tensor that is written to may have values to be changed, or gets some."""
    if not isinstance(value, FakeTensor):
        return False
    if value.dtype in _EXACT_DTYPES:
        return True
    if not _is_small_float(value):
        return False
    return (overwritten and not value.requires_grad) or not _is_unknown(value)


def _is_random(func: Any) -> bool:
    """Whether an operator gives random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags


def _is_whole_storage(tensor: torch.Tensor) -> bool:
    """Whether the tensor is all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") is not None else kwargs
