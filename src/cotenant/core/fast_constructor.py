"""Frozen dataclasses that are created and changed by the million, several for each event of the simulator.

A module of its own: the decoder of the journal, the scheduler and the simulator use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["fast_constructor", "fast_replace"]

T = TypeVar("T")


def fast_constructor(kind: type[T]) -> Callable[..., T]:
    """A function that creates a `kind` from the values of its fields, in order; fields with defaults may be omitted.

    It is several times as fast as `kind(...)`: the generated `__init__` of a frozen dataclass calls
    `object.__setattr__` for each field (Lib/dataclasses.py, `_field_assign`). Here plain assignments fill a twin class
    with the same slots that is not frozen, and then the object's `__class__` becomes `kind`.

    Raises:
        TypeError: `kind` is not a dataclass with slots, or its construction does more than assign values.
    """
    _slots(kind)

    def become(twin: Any) -> None:
        twin.__class__ = kind

    arguments = [_argument(field) for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return dataclasses.make_dataclass(kind.__name__, arguments, namespace={"__post_init__": become}, slots=True)


def _argument(field: dataclasses.Field[Any]) -> str | tuple[str, Any, Any]:
    """The same field in another class."""
    if field.default_factory is not dataclasses.MISSING:
        return field.name, Any, dataclasses.field(default_factory=field.default_factory)
    if field.default is not dataclasses.MISSING:
        return field.name, Any, dataclasses.field(default=field.default)
    return field.name


if TYPE_CHECKING:
    from dataclasses import replace as fast_replace  # so that mypy checks the names and the types of the changes
else:

    def fast_replace(original, /, **changes):
        """`dataclasses.replace` in a third of its time, for frozen dataclasses with slots.

        Raises:
            TypeError: the class has no slots, or does more in its construction than assign values.
            AttributeError: it has no such field.
        """
        twin, read = _twin(type(original))
        copy = twin(*read(original))
        for name, value in changes.items():
            setattr(copy, name, value)
        copy.__class__ = type(original)
        return copy


def _slots(kind: type[Any]) -> tuple[str, ...]:
    names = tuple(field.name for field in dataclasses.fields(kind))
    if hasattr(kind, "__post_init__") or getattr(kind, "__slots__", None) != names:
        raise TypeError(f"`{kind.__name__}` has no slots, or does more in its construction than assign values")
    return names


@cache
def _twin(kind: type[Any]) -> tuple[type[Any], attrgetter[Any]]:
    """A class with the fields of `kind` that is not frozen, and a reader of all fields of a `kind`."""
    names = _slots(kind)
    return dataclasses.make_dataclass(kind.__name__, names, slots=True), attrgetter(*names)
