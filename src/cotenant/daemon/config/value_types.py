"""Types of configuration values: how they are read from text, checked, and named in messages and in the reference."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cotenant.daemon.config.schema import Config

MAX_NUMBER = 1e12
_NAMES = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """A key, for the reference.

    Attributes:
        type: for people, e.g. `a number above zero`.
        default: as in TOML; `none` where the key may be absent.
        variable: the environment variable that sets it.
    """

    section: str
    key: str
    type: str
    default: str
    help: str
    variable: str


def reference() -> list[ConfigKey]:
    """Every key, in the order of `Config`."""
    return [
        ConfigKey(
            section=section.name,
            key=item.name,
            type=type_name(hints(hints(Config)[section.name])[item.name], above_zero=item.metadata["above_zero"]),
            default=_toml(item),
            help=item.metadata["help"],
            variable=f"COTENANT_{section.name}__{item.name}".upper(),
        )
        for section in dataclasses.fields(Config)
        for item in dataclasses.fields(hints(Config)[section.name])
    ]


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    """Types of the fields of a section, or of the sections of `Config`."""
    return typing.get_type_hints(kind)


def is_above_zero(section: type, key: str) -> bool:
    """Whether a key refuses 0 and less."""
    return any(item.name == key and item.metadata["above_zero"] for item in dataclasses.fields(section))


def options(kind: Any) -> tuple[Any, ...]:
    """The members of a union; a type that is none is its only member."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type."""
    if typing.get_origin(kind) is Literal:
        return value in typing.get_args(kind)
    if typing.get_origin(kind) is not None:
        return isinstance(value, Mapping)
    if kind is float:
        # NaN and infinity fail here: every comparison with NaN is false.
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def type_name(kind: Any, *, above_zero: bool = False) -> str:
    """What a value of this type is, for people."""
    names = [_option_name(option) for option in options(kind) if option is not type(None)]
    return " or ".join(names) + (" above zero" if above_zero else "")


def _option_name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(f"`{choice}`" for choice in typing.get_args(kind))
    return _NAMES.get(kind, "a table")


def _toml(item: dataclasses.Field[Any]) -> str:
    if item.default is dataclasses.MISSING:
        return "{}"
    if item.default is None:
        return "none"
    if isinstance(item.default, bool):
        return str(item.default).lower()
    return f'"{item.default}"' if isinstance(item.default, str) else f"{item.default:g}"
