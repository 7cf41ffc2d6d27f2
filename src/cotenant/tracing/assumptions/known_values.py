"""Real values of small tensors on the fake GPU, and on the null GPU (`cuda_build.known_tensors`).

Masks, labels, boxes and lengths of a batch come from the CPU, where their values are known. They stay known: an
operator on known values is also computed for real, on the CPU. So a branch on a mask, and a shape that depends on one,
are as on a GPU. Floating-point values are tracked for few elements, and only of data and constants: not of random
numbers, and of parameters only their first values, for a script that reads them as a mask. So the model itself is not
computed.
Some integers are assumed (see `moe_routing` and `generated_tokens`), and values computed from them are assumed as well.

Values belong to a storage, so that views and in-place writes see each other's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import equal_contents, label_maps

_aten = torch.ops.aten

# Larger tensors are attention masks and the like: no size depends on their values, and computing them takes seconds.
_MAX_ELEMENTS = 1 << 20
_MAX_ASSUMED_ELEMENTS = 1 << 24  # of routing, on which the memory of a mixture of experts depends
_MAX_FLOATS = 1 << 16  # boxes and times of a batch, but not its images

EVEN_ROUTING = "what a router chooses depends on the data; assumed: every expert gets the same number of tokens"
RANDOM_CHOICE = "which elements are drawn is random; their number is known"  # never shown: nothing depends on it
GENERATED_TEXT = "what a model generates depends on its weights; assumed: texts of maximum length, with ordinary tokens"
ALL_FOUND = "which elements a mask selects depends on the data; assumed: all"  # never shown: its size was warned of
EVEN_CHOICE = "which elements are chosen depends on the data; assumed: as many of each number, if they are sorted"
"""Reasons for assumed values, shown as warnings where a size depends on them."""

_EXACT_DTYPES = frozenset((torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
_VALUES_ATTRIBUTE = "_cotenant_values"
_ASSUMPTION_ATTRIBUTE = "_cotenant_assumption"
_OVERWRITES = frozenset((_aten.copy_.default, _aten.fill_.Scalar, _aten.zero_.default, _aten.random_.default))
_UNSCALE = _aten._amp_foreach_non_finite_check_and_unscale_.default
_ABSORBING = {
    **dict.fromkeys(("__or__", "bitwise_or", "logical_or"), True),
    **dict.fromkeys(("__and__", "bitwise_and", "logical_and"), False),
}
"""The value of one operand that decides the result alone."""
_OF_DTYPE = frozenset(("new_zeros", "new_ones", "new_full"))
_ADDRESSES: set[int] = set()
"""Of storages of real tensors that got values, as long as they live."""
_ADDRESS_ATTRIBUTE = "_cotenant_address"

_COMPUTE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)


class KnownValues:
    """The known and the assumed values of fake tensors.

    Attributes:
        max_assumed_elements: larger tensors get no assumed values.
        reads: how often values were wanted other than to compute further values.
        read_log: gets the values of each such read as bytes, None for unknown ones; None: not wanted.
    """

    max_assumed_elements = _MAX_ASSUMED_ELEMENTS

    def __init__(self) -> None:
        self._written: dict[OpOverload, tuple[int, ...] | None] = {}
        self.reads = 0
        self.read_log: list[bytes | None] | None = None

    def of(self, tensor: Any) -> torch.Tensor | None:
        """The values, as a CPU tensor with the same strides, not to be written to; None where they are not known."""
        self.reads += 1
        values = self._values(tensor)
        if self.read_log is not None:
            self.read_log.append(None if values is None else digest(values))
        return values

    def peek(self, tensor: Any) -> torch.Tensor | None:
        """The same, to compute further values: not a read."""
        return self._values(tensor)

    def _values(self, tensor: Any) -> torch.Tensor | None:
        if not _on_gpu(tensor):
            return tensor if tensor.device.type == "cpu" else None
        flat = _storage_attribute(tensor, _VALUES_ATTRIBUTE)
        if flat is None:
            if tensor.numel() <= _MAX_ELEMENTS and equal_contents.is_zero(tensor):
                return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()
            return None
        return torch.empty(0, dtype=tensor.dtype).set_(flat, tensor.storage_offset(), tensor.shape, tensor.stride())

    def assume(self, tensor: FakeTensor, value: torch.Tensor, why: str) -> None:
        """Set assumed values of `tensor`; `why`: one of the reasons above."""
        self._set(tensor, value)
        setattr(tensor.untyped_storage(), _ASSUMPTION_ATTRIBUTE, why)

    def set_all(self, tensor: FakeTensor, value: bool) -> bool:
        """All elements of a tensor of booleans have this value. Returns False where there are too many."""
        is_small = tensor.numel() <= _MAX_ELEMENTS
        if is_small:
            self._set(tensor, torch.full((), value).expand(tensor.shape))
        return is_small

    def forget(self, tensor: Any) -> None:
        """The values of a tensor have changed, and the new ones are not known."""
        equal_contents.forget(tensor)
        self._drop(tensor)

    def _drop(self, tensor: Any) -> None:
        if _storage_attribute(tensor, _VALUES_ATTRIBUTE) is not None:
            setattr(tensor.untyped_storage(), _VALUES_ATTRIBUTE, None)

    def propagate(self, func: OpOverload, args: Any, kwargs: Any, out: Any) -> None:
        """Compute the values of the result `out` of an operator, or of what it wrote to."""
        try:
            written = self._written[func]
        except KeyError:
            written = self._written[func] = _written_arguments(func)
        if written is None:
            return
        if func is _UNSCALE:  # no gradient overflows: the `found_inf` tensor, which it also writes to, stays 0
            for gradient in args[0]:
                self.forget(gradient)
        elif written:
            self._write(func, args, kwargs, written)
        elif _any_small_exact(out) or _is_float_data(func, args, out):
            self._compute(func, args, kwargs, out)
        else:
            label_maps.note(func, args, out)

    def _compute(self, func: OpOverload, args: Any, kwargs: Any, out: Any) -> None:
        why = _assumption_in(args)
        limit = max_elements(why)
        if not any(_is_small_exact(leaf, limit) or _is_small_float(leaf) for leaf in _leaves(out)):
            return
        try:
            values = func(*self._known(_without_contents(func, args)), **self._known(_on_cpu(kwargs)))
        except _UnknownValue:
            values = self._absorbed(func, args, out)
            if values is None and (values := self._evenly_chosen(func, args, out)) is not None:
                why = EVEN_CHOICE
            if values is None:
                return
        except _COMPUTE_ERRORS:
            return
        for fake, value in zip(_leaves(out), _leaves(values), strict=True):
            if (_is_small_exact(fake, limit) or _is_small_float(fake)) and fake.shape == value.shape:
                self._set(fake, value)
                if why:
                    setattr(fake.untyped_storage(), _ASSUMPTION_ATTRIBUTE, why)

    def _absorbed(self, func: OpOverload, args: Any, out: Any) -> torch.Tensor | None:
        """The result where one operand decides it alone: `or` with all true, or `and` with all false."""
        absorbing = _ABSORBING.get(func._opname)
        if absorbing is None or (out.dtype is not torch.bool and absorbing):
            return None
        for arg in args:
            known = self._values(arg) if isinstance(arg, torch.Tensor) and arg.numel() <= _MAX_ELEMENTS else None
            if known is not None and not assumption_of(arg) and bool((known == absorbing).all()):
                return torch.full(out.shape, absorbing, dtype=out.dtype)
        return None

    def _evenly_chosen(self, func: OpOverload, args: Any, out: Any) -> torch.Tensor | None:
        """What unknown positions choose of a sorted vector with repeated numbers, as of the graph of each node."""
        if func is not _aten.index.Tensor or len(args[1]) != 1 or args[1][0].dtype is not torch.int64:
            return None
        source = self._values(args[0])
        if source is None or source.dtype is not torch.int64 or source.dim() != 1 or not 0 < out.numel() <= len(source):
            return None
        steps = source.diff()
        if not ((steps >= 0).all() and (steps == 0).any() and (steps > 0).any()):
            return None
        places = torch.linspace(0, len(source) - 1, out.numel(), dtype=torch.float64).round().long()
        return source[places].reshape(out.shape)

    def _write(self, func: OpOverload, args: Any, kwargs: Any, written: tuple[int, ...]) -> None:
        targets = [leaf for index in written if index < len(args) for leaf in _leaves(args[index])]
        targets += [leaf for key in ("out", "values", "indices") if key in kwargs for leaf in _leaves(kwargs[key])]
        equal_contents.written(func, args, targets)
        for target in targets:
            if isinstance(target, torch.Tensor) and target.requires_grad:  # the first values of a parameter
                self._drop(target)
        overwrites = func in _OVERWRITES
        tracked = [target for target in targets if _is_tracked(target, overwrites)]
        if not tracked:
            return
        first = tracked[0]
        is_small = _is_small_exact(first) or _is_small_float(first)
        if overwrites and is_small and _is_whole_storage(first) and self._values(first) is None:
            self._set(first, torch.zeros((), dtype=first.dtype).expand(first.shape))
        if why := _assumption_in(args):
            for target in tracked:
                setattr(target.untyped_storage(), _ASSUMPTION_ATTRIBUTE, why)
        if first.dtype not in _EXACT_DTYPES and _is_random(func):
            self._drop(first)
            return
        try:
            func(*self._known(args), **self._known(kwargs))
        except (_UnknownValue, *_COMPUTE_ERRORS):
            for target in tracked:
                self._drop(target)

    def _set(self, tensor: FakeTensor, value: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if not isinstance(tensor, FakeTensor) and not hasattr(storage, _ADDRESS_ATTRIBUTE):
            setattr(storage, _ADDRESS_ATTRIBUTE, _LivingAddress(_address(tensor)))
        flat = torch.UntypedStorage(storage.nbytes())
        real = torch.empty(0, dtype=tensor.dtype).set_(flat, tensor.storage_offset(), tensor.shape, tensor.stride())
        real.copy_(value)
        setattr(storage, _VALUES_ATTRIBUTE, flat)

    def _known(self, value: Any) -> Any:
        """`value` with every fake tensor replaced by its values.

        Raises:
            _UnknownValue: those of one are not known, or too many.
        """
        if isinstance(value, torch.Tensor):
            known = self._values(value)
            if known is None or known.numel() > max_elements(assumption_of(value)):
                raise _UnknownValue
            return known
        if isinstance(value, (list, tuple)):
            return type(value)([self._known(item) for item in value])
        if isinstance(value, dict):
            return {key: self._known(item) for key, item in value.items()}
        return value


def digest(values: torch.Tensor) -> bytes:
    """A digest of the values of a CPU tensor."""
    flat = values.detach().contiguous().flatten().view(torch.uint8)
    return hashlib.blake2b(flat.numpy().tobytes(), digest_size=16).digest()


def has_known_values(tensor: Any) -> bool:
    """Whether the values of a fake tensor are known, or assumed."""
    return _storage_attribute(tensor, _VALUES_ATTRIBUTE) is not None


def assumption_of(tensor: Any) -> str:
    """Why the values of a tensor were assumed; empty if they are known, or nothing is known of them."""
    return _storage_attribute(tensor, _ASSUMPTION_ATTRIBUTE) or ""


def may_have_values(tensor: torch.Tensor) -> bool:
    """Whether values belong to its storage, or belonged to it.

    Where they did not, a real storage is not looked at: PyTorch adds gradients in place only if it holds the last
    reference (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`), and a Python object would be one.
    """
    if isinstance(tensor, FakeTensor):
        return True
    try:
        return _address(tensor) in _ADDRESSES
    except RuntimeError:  # it wraps another tensor and has no memory, as one of functionalization
        return False


class _LivingAddress:
    """An address in `_ADDRESSES`, as an attribute of the storage that is there: it goes with the storage."""

    def __init__(self, address: int) -> None:
        self._address, self._discard = address, _ADDRESSES.discard
        _ADDRESSES.add(address)

    def __del__(self) -> None:
        self._discard(self._address)


def _address(tensor: torch.Tensor) -> int:
    return tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()


def _storage_attribute(tensor: Any, name: str) -> Any:
    """An attribute of a fake tensor's storage, or None. A sparse tensor has no storage."""
    if not _on_gpu(tensor) or tensor.layout is not torch.strided or not may_have_values(tensor):
        return None
    return getattr(tensor.untyped_storage(), name, None)


def _assumption_in(args: Any) -> str:
    return next((why for leaf in _leaves(args) if (why := assumption_of(leaf))), "")


def max_elements(why: str) -> int:
    """Values are computed with tensors of at most so many elements; `why` as `assumption_of` gives it."""
    return _MAX_ASSUMED_ELEMENTS if why in (EVEN_ROUTING, RANDOM_CHOICE) else _MAX_ELEMENTS


class _UnknownValue(Exception):
    """A value that is needed is not known."""


def _written_arguments(func: OpOverload) -> tuple[int, ...] | None:
    """Positions of the arguments that `func` writes to: none if it makes new tensors, None if it makes views.

    None as well for a function whose result has no values of its own, such as `empty`, or depends on data.
    """
    schema = func._schema
    if func._opname.startswith(("empty", "new_empty")) or torch.Tag.data_dependent_output in func.tags:
        return None
    writes = tuple(i for i, arg in enumerate(schema.arguments) if arg.alias_info and arg.alias_info.is_write)
    if writes:
        return writes
    is_view = any(result.alias_info is not None for result in schema.returns)
    return None if is_view else ()


def _on_gpu(value: Any) -> bool:
    """Whether it is a fake tensor, or one of a CUDA build."""
    return isinstance(value, FakeTensor) or (isinstance(value, torch.Tensor) and value.is_cuda)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_small_exact(value: Any, limit: int = _MAX_ELEMENTS) -> bool:
    return _on_gpu(value) and value.dtype in _EXACT_DTYPES and value.numel() <= limit


def _any_small_exact(out: Any) -> bool:
    if _on_gpu(out):
        return _is_small_exact(out, _MAX_ASSUMED_ELEMENTS)
    return any(_is_small_exact(leaf, _MAX_ASSUMED_ELEMENTS) for leaf in _leaves(out))


def _is_float_data(func: OpOverload, args: Any, out: Any) -> bool:
    """Whether `out` is a small floating-point tensor made of data and constants alone."""
    if not _is_small_float(out):
        return False
    if func is _aten._to_copy.default and args[0].device.type == "cpu":  # also of a parameter that requires gradients
        return True
    for arg in _without_contents(func, args):
        if isinstance(arg, (list, tuple)):
            if any(_is_unknown(leaf) for leaf in _leaves(arg)):
                return False
        elif _is_unknown(arg):
            return False
    return not _is_random(func)


def _is_small_float(value: Any) -> bool:
    if not _on_gpu(value) or value.layout is not torch.strided:
        return False
    return value.dtype.is_floating_point and value.numel() <= _MAX_FLOATS


def _is_unknown(value: Any) -> bool:
    """Whether it is a tensor whose values are not known, or are learned."""
    if not isinstance(value, torch.Tensor):
        return False
    if value.requires_grad:
        return True
    return _on_gpu(value) and _storage_attribute(value, _VALUES_ATTRIBUTE) is None


def _is_tracked(value: Any, overwritten: bool) -> bool:
    """Whether a tensor that is written to has values to be changed, or gets some because it is overwritten."""
    if not _on_gpu(value):
        return False
    if value.dtype in _EXACT_DTYPES:
        return True
    if not _is_small_float(value):
        return False
    return (overwritten and not value.requires_grad) or not _is_unknown(value)


def _without_contents(func: OpOverload, args: Any) -> Any:
    """The arguments of an operator; of one that uses the dtype of a tensor alone, an empty one in its place.

    Not of `zeros_like`: samplers of detectors write to such masks at positions that are assumed, and choose too few.
    """
    is_of_dtype = func._opname in _OF_DTYPE and _on_gpu(args[0]) and args[0].layout is torch.strided
    return (torch.empty(0, dtype=args[0].dtype), *args[1:]) if is_of_dtype else args


def _is_random(func: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _is_whole_storage(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _on_cpu(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") is not None else kwargs
