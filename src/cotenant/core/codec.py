"""Frozen dataclasses to plain JSON values and back, for the journal and the socket.

A dataclass becomes an object with its class name under `type`; a tuple becomes an array. Decoding checks every field
against its annotation, so data of another version fails at once, with the place and the reason. Unknown fields are
refused; absent fields get their default.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Mapping
from itertools import compress
from typing import Any, TypeVar

from cotenant.core import fast_decoder
from cotenant.core.errors import CotenantError

T = TypeVar("T")
_PLAIN = frozenset((str, int, float, bool))


class CodecError(CotenantError):
    """A value does not fit the type that it is decoded as."""


def encode(value: object, *, lean: bool = False) -> Any:
    """Plain JSON for a dataclass, mapping, sequence or scalar; `lean` omits fields that have their default."""
    if value is None or type(value) in _PLAIN:
        return value
    shape = _shape(type(value))  # type: ignore[arg-type]  # a class is hashable; mypy looks at its instances
    if shape is not None:
        one_level = shape.non_defaults if lean else shape.fields
        return {name: encode(part, lean=lean) for name, part in one_level(value).items()}
    if isinstance(value, Mapping):
        return {str(key): encode(item, lean=lean) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item, lean=lean) for item in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    raise CodecError(f"cannot encode a `{type(value).__name__}`")


def to_json(value: object, *, lean: bool = False) -> str:
    """The result of `encode` as compact JSON, in one pass.

    Raises:
        CodecError: something in it cannot be encoded.
        ValueError: a number in it is infinite or NaN, which JSON does not have.
    """
    return _LEAN_JSON(value) if lean else _JSON(value)


def to_lean_json_with(value: object, kind: type, field: str, replacement: object) -> str:
    """Lean JSON of a dataclass, with `replacement` in place of `field` in those of its fields that are a `kind`.

    Raises:
        CodecError, ValueError: as `to_json`.
    """
    plain = _lean_level(value)
    for name, part in plain.items():
        if type(part) is kind:
            plain[name] = {**_lean_level(part), field: replacement}
    return _LEAN_JSON(plain)


class _Shape:
    """Reads the fields of one dataclass: several times as fast as a loop over `dataclasses.fields`."""

    def __init__(self, kind: type[Any]) -> None:
        fields = dataclasses.fields(kind)
        self._tag = kind.__name__
        self._names = tuple(field.name for field in fields)
        self._tagged_names = ("type", *self._names)
        # A field without a default has MISSING, which equals no value.
        self._defaults = tuple(
            field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            for field in fields
        )
        self._values_of: Callable[[Any], tuple[Any, ...]] = (
            operator.attrgetter(*self._names)
            if len(fields) > 1  # of one name it returns no tuple
            else lambda value: tuple(getattr(value, name) for name in self._names)
        )

    def fields(self, value: object) -> dict[str, Any]:
        """`type` and all fields."""
        return dict(zip(self._tagged_names, (self._tag, *self._values_of(value)), strict=True))

    def non_defaults(self, value: object) -> dict[str, Any]:
        """`type` and the fields whose values are not their defaults."""
        values = self._values_of(value)
        differs = list(map(operator.ne, values, self._defaults))
        found = {"type": self._tag}
        found.update(zip(compress(self._names, differs), compress(values, differs), strict=True))
        return found


@functools.cache
def _shape(kind: type[Any]) -> _Shape | None:
    """How to read a dataclass; None for any other class."""
    return _Shape(kind) if dataclasses.is_dataclass(kind) else None


def _one_level(value: object) -> dict[str, Any]:
    """`value` in types that `json` can encode, one level deep: its encoder calls again for what is inside."""
    shape = _shape(type(value))  # type: ignore[arg-type]  # a class is hashable; mypy looks at its instances
    return _plain_mapping(value) if shape is None else shape.fields(value)


def _lean_level(value: object) -> dict[str, Any]:
    """Like `_one_level`, without fields that have their defaults."""
    shape = _shape(type(value))  # type: ignore[arg-type]  # a class is hashable; mypy looks at its instances
    return _plain_mapping(value) if shape is None else shape.non_defaults(value)


def _plain_mapping(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise CodecError(f"cannot encode a `{type(value).__name__}`")


_JSON = json.JSONEncoder(default=_one_level, separators=(",", ":"), allow_nan=False).encode
_LEAN_JSON = json.JSONEncoder(default=_lean_level, separators=(",", ":"), allow_nan=False).encode


def decode(kind: type[T] | Any, value: Any) -> T:
    """Decode `value` as a `kind`, which may be a union of dataclasses.

    Raises:
        CodecError: it does not fit; the message names the place and what was found there.
    """
    try:
        found = fast_decoder.decoder(kind)(value)
    except Exception:  # noqa: BLE001 (the slow decoder below finds it again, with its place)
        found = None
    return typing.cast("T", _decode(kind, value, "value") if found is None else found)


def _decode(kind: Any, value: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(kind, value, where)
    if origin is typing.Literal:
        if value in typing.get_args(kind):
            return value
        raise CodecError(f"`{where}` is {value!r}, wanted one of {list(typing.get_args(kind))}")
    if origin is tuple:
        item_kind, *rest = typing.get_args(kind)
        _require(isinstance(value, list), where, value, "an array")
        kinds = [item_kind] * len(value) if rest == [Ellipsis] else [item_kind, *rest]
        _require(len(kinds) == len(value), where, value, f"{len(kinds)} items")
        pairs = zip(kinds, value, strict=True)
        return tuple(_decode(item_kind, item, f"{where}[{i}]") for i, (item_kind, item) in enumerate(pairs))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _require(isinstance(value, dict), where, value, "an object")
        item_kind = typing.get_args(kind)[1]
        return {key: _decode(item_kind, item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, value, where)
    return _decode_scalar(kind, value, where)


def _decode_union(kind: Any, value: Any, where: str) -> Any:
    options = typing.get_args(kind)
    if value is None:
        _require(type(None) in options, where, value, "a value")
        return None
    tag = value.get("type") if isinstance(value, dict) else None
    for option in options:
        if dataclasses.is_dataclass(option) and getattr(option, "__name__", None) == tag:
            return _decode(option, value, where)
    rest = [option for option in options if not dataclasses.is_dataclass(option) and option is not type(None)]
    for option in rest:
        try:
            return _decode(option, value, where)
        except CodecError:
            continue
    names = ", ".join(getattr(option, "__name__", str(option)) for option in options)
    raise CodecError(f"`{where}` is {_short(value)}, wanted one of: {names}")


def _decode_dataclass(kind: Any, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), where, value, f"a {kind.__name__}")
    if value.get("type", kind.__name__) != kind.__name__:
        raise CodecError(f"`{where}` is a {value['type']}, wanted a {kind.__name__}")
    hints = _hints(kind)
    unknown = value.keys() - hints.keys() - {"type"}
    if unknown:
        raise CodecError(f"`{where}` has unknown fields: {', '.join(sorted(unknown))}")
    found = {name: _decode(hint, value[name], f"{where}.{name}") for name, hint in hints.items() if name in value}
    try:
        return kind(**found)
    except TypeError as error:
        raise CodecError(f"`{where}` is not a complete {kind.__name__}: {error}") from error


def _decode_scalar(kind: Any, value: Any, where: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is int and isinstance(value, bool):
        raise CodecError(f"`{where}` is {value!r}, wanted int")
    if kind is object or kind is Any or isinstance(value, kind):
        return value
    raise CodecError(f"`{where}` is {_short(value)}, wanted {getattr(kind, '__name__', kind)}")


def _require(holds: bool, where: str, value: Any, wanted: str) -> None:
    if not holds:
        raise CodecError(f"`{where}` is {_short(value)}, wanted {wanted}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
