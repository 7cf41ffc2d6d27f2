"""Constructors of frozen dataclasses that are created by the million, several for each event of the simulator.

A module of its own: the decoder of the journal, the scheduler and the simulator use it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def fast_constructor(kind: type[T]) -> Callable[..., T]:
    """A function that creates a `kind` from the values of its fields, in order; fields with defaults may be omitted.

    It is several times as fast as `kind(...)`: the generated `__init__` of a frozen dataclass calls
    `object.__setattr__` for each field (Lib/dataclasses.py, `_field_assign`). Here plain assignments fill a twin class
    with the same slots that is not frozen, and then the object's `__class__` becomes `kind`.

    Raises:
        TypeError: `kind` is not a dataclass with slots, or its construction does more than assign values.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = tuple(field.name for field in fields)
    has_factories = any(field.default_factory is not dataclasses.MISSING for field in fields)
    if has_factories or hasattr(kind, "__post_init__") or getattr(kind, "__slots__", None) != names:
        raise TypeError(f"`{kind.__name__}` has no slots, or does more in its construction than assign values")

    def become(twin: Any) -> None:
        twin.__class__ = kind

    arguments = [
        field.name
        if field.default is dataclasses.MISSING
        else (field.name, Any, dataclasses.field(default=field.default))
        for field in fields
    ]
    return dataclasses.make_dataclass(kind.__name__, arguments, namespace={"__post_init__": become}, slots=True)
