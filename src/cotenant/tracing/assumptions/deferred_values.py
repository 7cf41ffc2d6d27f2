"""Values of tensors that are too large to be computed with every operator: computed where a size depends on them.

Detectors ask which of the 8,400 anchors of an image lie in each of its boxes, and take what the predictions have there:
a few percent. Boxes and anchors are known (`known_values`), their differences are millions of numbers. So the operators
are noted as an expression, and `x[mask]` evaluates it.
Source: ultralytics/utils/tal.py, `TaskAlignedAssigner.select_candidates_in_gts`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import assumption_of

_MIN_ELEMENTS = 1 << 16  # what is smaller has values, or is made of something that has none
_MAX_ELEMENTS = 1 << 25  # of any tensor in an expression: 128 MiB of float32
_MAX_COMPUTED = 1 << 27  # in all tensors of an expression, which are in memory together
_MAX_COPIED = 1 << 20  # of known values, as many as `known_values` has; not the images of a batch
_MAX_OPERATORS = 64
_ATTRIBUTE = "_cotenant_deferred"
_WRITES_ATTRIBUTE = "_cotenant_deferred_writes"
_DATA_DEPENDENT = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded)
_EVALUATION_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)


@dataclass(slots=True)
class _Expression:
    """The result of an operator.

    Attributes:
        in_place: whether `func` writes to its first argument.
        operators: how many are in it.
        computed: how many elements they give.
        value: once a size depended on it.
    """

    func: OpOverload
    args: Any
    kwargs: Any
    in_place: bool
    operators: int
    computed: int
    value: torch.Tensor | None = None


class _Unknown(Exception):
    """An argument has no values."""


def propagate(func: OpOverload, args: Any, kwargs: Any, out: Any, values: Callable[[Any], torch.Tensor | None]) -> None:
    """Note how `out` was made, if all arguments have values. `values`: known values of a tensor."""
    if _written_arguments(func):
        _propagate_write(func, args, kwargs, values)
    elif isinstance(out, FakeTensor) and args and (out.numel() > _MIN_ELEMENTS or _is_deferred(args[0])):
        made = _expression(func, args, kwargs, out, values)
        if made is not None:
            _set(out, made)


def value_of(tensor: Any) -> torch.Tensor | None:
    """The values of a tensor on the CPU, not to be written to; None: not known, or too many."""
    expression = _of(tensor)
    if expression is None:
        return None
    try:
        value = _evaluated(expression, {})
    except _EVALUATION_ERRORS:
        return None
    expression.value, expression.args, expression.kwargs = value, (), {}
    return value if value.shape == tensor.shape and value.dtype is tensor.dtype else None


@functools.cache
def _is_data_dependent(func: OpOverload) -> bool:
    return any(tag in func.tags for tag in _DATA_DEPENDENT)


@functools.cache
def _written_arguments(func: OpOverload) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments that an operator writes to."""
    arguments = enumerate(func._schema.arguments)
    return tuple((i, arg.name) for i, arg in arguments if arg.alias_info and arg.alias_info.is_write)


def _propagate_write(func: OpOverload, args: Any, kwargs: Any, values: Callable[[Any], torch.Tensor | None]) -> None:
    target = args[0] if args else None
    made = _expression(func, args, kwargs, target, values) if _is_deferred(target) else None
    for index, name in _written_arguments(func):
        for written in _leaves(args[index] if index < len(args) else kwargs.get(name)):
            _count_write(written)
    if made is not None and made.in_place:
        _set(target, made)


def _count_write(target: Any) -> None:
    """What was deferred of this storage so far is out of date."""
    if isinstance(target, FakeTensor) and target.layout is torch.strided:
        storage = target.untyped_storage()
        count = getattr(storage, _WRITES_ATTRIBUTE, None)
        if count is not None:
            setattr(storage, _WRITES_ATTRIBUTE, count + 1)


def _leaves(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, (list, tuple)) else (value,)


def _expression(
    func: OpOverload, args: Any, kwargs: Any, out: FakeTensor, values: Callable[[Any], torch.Tensor | None]
) -> _Expression | None:
    """None: it has unknown or too many values, is not strided, or writes to more than its first argument."""
    if out.layout is not torch.strided or not 0 < out.numel() <= _MAX_ELEMENTS or out.requires_grad:
        return None
    if _is_data_dependent(func):
        return None
    tensors: list[Any] = []
    try:
        noted = _noted(args, values, tensors), _noted(kwargs, values, tensors)
    except _Unknown:
        return None
    parts = [part for part in tensors if isinstance(part, _Expression)]
    operators, computed = 1 + sum(part.operators for part in parts), out.numel() + sum(part.computed for part in parts)
    if not tensors or operators > _MAX_OPERATORS or computed > _MAX_COMPUTED:
        return None
    in_place = [index for index, _ in _written_arguments(func)] == [0]
    return _Expression(func, *noted, in_place, operators, computed)


def _noted(value: Any, values: Callable[[Any], torch.Tensor | None], tensors: list[Any]) -> Any:
    """`value` with an expression, or a copy of the known values, for every tensor; these are added to `tensors`.

    Raises:
        _Unknown: those of one are not known, are learned, or were assumed.
    """
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            raise _Unknown
        found: Any = _of(value)
        if found is None:
            known = values(value)
            if known is None or known.numel() > _MAX_COPIED or assumption_of(value):
                raise _Unknown
            found = known.clone()
        tensors.append(found)
        return found
    if isinstance(value, (list, tuple)):
        return type(value)([_noted(item, values, tensors) for item in value])
    if isinstance(value, dict):
        return {key: _noted(item, values, tensors) for key, item in value.items()}
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _evaluated(value: Any, results: dict[int, torch.Tensor]) -> Any:
    """`value` with the result of every expression. `results`: of those that were evaluated, by their `id`."""
    if isinstance(value, _Expression):
        if value.value is not None:
            return value.value
        if id(value) not in results:
            args, kwargs = _evaluated(value.args, results), _evaluated(value.kwargs, results)
            if value.in_place:
                args = (args[0].clone(), *args[1:])
            results[id(value)] = value.func(*args, **kwargs)
        return results[id(value)]
    if isinstance(value, (list, tuple)):
        return type(value)([_evaluated(item, results) for item in value])
    if isinstance(value, dict):
        return {key: _evaluated(item, results) for key, item in value.items()}
    return value


def _is_deferred(value: Any) -> bool:
    return _of(value) is not None


def _of(value: Any) -> _Expression | None:
    found = getattr(value, _ATTRIBUTE, None)
    if found is None:
        return None
    expression, writes = found
    return expression if writes == getattr(value.untyped_storage(), _WRITES_ATTRIBUTE, None) else None


def _set(tensor: FakeTensor, expression: _Expression) -> None:
    storage = tensor.untyped_storage()
    writes = getattr(storage, _WRITES_ATTRIBUTE, None)
    if writes is None:
        writes = 0
        setattr(storage, _WRITES_ATTRIBUTE, writes)
    setattr(tensor, _ATTRIBUTE, (expression, writes))
