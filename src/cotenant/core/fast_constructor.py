"""Frozen dataclasses that are made by the million: a decision makes one, an event of the simulator several."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def fast_constructor(kind: type[T]) -> Callable[..., T]:
    """Makes a `kind` of the values of its fields, in order; what has a default may be left out.

    Several times as fast as `kind(...)`, which sets each field by `object.__setattr__` because it is frozen. Here they
    are assigned on a twin with the same slots that is not frozen, and the twin turns into a `kind`.

    Raises:
        TypeError: `kind` is no dataclass with slots, or makes more of its values than it is given.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    names = tuple(each.name for each in fields)
    made = any(each.default_factory is not dataclasses.MISSING for each in fields)
    if made or hasattr(kind, "__post_init__") or getattr(kind, "__slots__", None) != names:
        raise TypeError(f"`{kind.__name__}` is more than slots for the values it is given")

    def become(twin: Any) -> None:
        twin.__class__ = kind

    given = [
        each.name if each.default is dataclasses.MISSING else (each.name, Any, dataclasses.field(default=each.default))
        for each in fields
    ]
    return dataclasses.make_dataclass(kind.__name__, given, namespace={"__post_init__": become}, slots=True)
