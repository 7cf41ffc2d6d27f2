"""Frozen dataclasses to plain JSON values and back, for the journal and the socket.

A dataclass becomes an object with its class name under `type`; tuples become arrays. Decoding checks every
field against the annotation, so a journal of another version fails with a sentence, not later with a puzzle.
Unknown fields are refused; absent fields take their default.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cotenant.core import fast_decoder
from cotenant.core.errors import CotenantError

T = TypeVar("T")
_PLAIN = frozenset((str, int, float, bool))


class CodecError(CotenantError):
    """A value does not fit the type that it is decoded as."""


def encode(value: object, *, lean: bool = False) -> Any:
    """Plain JSON for a dataclass, mapping, sequence or scalar; `lean` leaves out fields that have their default."""
    if value is None or type(value) in _PLAIN:
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        told = _non_default_fields(value) if lean else _hints(type(value))
        fields = {name: encode(getattr(value, name), lean=lean) for name in told}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, Mapping):
        return {str(key): encode(each, lean=lean) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(each, lean=lean) for each in value]
    if isinstance(value, (bool, int, float, str)):
        return value
    raise CodecError(f"cannot encode a `{type(value).__name__}`")


def to_json(value: object) -> str:
    """What `encode` gives, as compact JSON, in one pass.

    Raises:
        CodecError: something in it cannot be encoded.
        ValueError: a number in it is none that JSON has.
    """
    return _JSON(value)


def _one_level(value: object) -> Any:
    """What JSON's own encoder knows of `value`; it comes back for what is inside."""
    kind = type(value)
    shape = _field_access(kind)  # type: ignore[arg-type]
    if shape is not None:
        names, values_of = shape
        return dict(zip(names, (kind.__name__, *values_of(value)), strict=True))
    if isinstance(value, Mapping):
        return dict(value)
    raise CodecError(f"cannot encode a `{kind.__name__}`")


_JSON = json.JSONEncoder(default=_one_level, separators=(",", ":"), allow_nan=False).encode


@functools.cache
def _field_access(kind: type) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]] | None:
    """Of a dataclass, `type` and the names of its fields, and what gives their values; None for anything else."""
    if not dataclasses.is_dataclass(kind):
        return None
    names = [each.name for each in dataclasses.fields(kind)]
    if len(names) < 2:  # for which `attrgetter` gives no tuple
        return ("type", *names), lambda value: tuple(getattr(value, each) for each in names)
    return ("type", *names), operator.attrgetter(*names)


def _non_default_fields(value: Any) -> list[str]:
    """The fields of a dataclass that `decode` would not know by itself."""
    kind: Any = type(value)
    return [name for name, default in _defaults(kind) if getattr(value, name) != default]


@functools.cache
def _defaults(kind: Any) -> list[tuple[str, Any]]:
    """What each field is where nothing is said; for those without a default something that equals nothing else."""
    return [
        (each.name, each.default if each.default_factory is dataclasses.MISSING else each.default_factory())
        for each in dataclasses.fields(kind)
    ]


def decode(kind: type[T] | Any, value: Any) -> T:
    """The `kind` that `value` stands for; `kind` may be a union of dataclasses.

    Raises:
        CodecError: names the place and what was found there.
    """
    try:
        found = fast_decoder.decoder(kind)(value)
    except Exception:  # noqa: BLE001 (whatever it was, it is found again below, with its place)
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
        each_kind, *rest = typing.get_args(kind)
        _require(isinstance(value, list), where, value, "an array")
        kinds = [each_kind] * len(value) if rest == [Ellipsis] else [each_kind, *rest]
        _require(len(kinds) == len(value), where, value, f"{len(kinds)} items")
        pairs = zip(kinds, value, strict=True)
        return tuple(_decode(each, item, f"{where}[{i}]") for i, (each, item) in enumerate(pairs))
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
    rest = [each for each in options if not dataclasses.is_dataclass(each) and each is not type(None)]
    for option in rest:
        try:
            return _decode(option, value, where)
        except CodecError:
            continue
    names = ", ".join(getattr(each, "__name__", str(each)) for each in options)
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
        raise CodecError(f"`{where}` is no complete {kind.__name__}: {error}") from error


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
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}
