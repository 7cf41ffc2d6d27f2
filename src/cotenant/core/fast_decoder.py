"""Decoding of values that fit; `codec.decode` tries it first, and explains what does not fit.

A decoder is composed once for each dataclass, so that reading a long journal evaluates each annotation once and not for
each event. It returns what `codec` returns, or raises; it never returns anything else.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from cotenant.core.fast_constructor import fast_constructor

Decoder = Callable[[Any], Any]


class DecodeMismatch(Exception):
    """The value does not fit, or only the slow decoder can decode it."""


def decoder(kind: Any) -> Decoder:
    """A function that turns plain JSON values into `kind`, a dataclass or an annotation of a field of one.

    It raises where they do not fit. Equal kinds share one decoder: `int | float` equals `float | int` although the
    order matters in decoding, so for both it raises.
    """
    return _decoder(kind)


@functools.cache
def _decoder(kind: Any) -> Decoder:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _union_decoder(typing.get_args(kind))
    if origin is typing.Literal:
        return _literal_decoder(typing.get_args(kind))
    if origin is tuple:
        return _tuple_decoder(typing.get_args(kind))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_decoder(typing.get_args(kind)[1])
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    if kind is object or kind is Any:
        return lambda value: value
    return _decode_float if kind is float else _scalar_decoder(kind)


def _dataclass_decoder(kind: Any) -> Decoder:
    tag = kind.__name__
    fields: list[tuple[str, Decoder]] = []

    def decode(value: Any) -> Any:
        if not fields:  # at the first call, because a dataclass may contain itself
            hints = typing.get_type_hints(kind)
            fields[:] = [(field.name, decoder(hints[field.name])) for field in dataclasses.fields(kind)]
        if type(value) is not dict or value.get("type", tag) != tag:
            raise DecodeMismatch
        found = {name: decode_field(value[name]) for name, decode_field in fields if name in value}
        if len(found) + ("type" in value) != len(value):
            raise DecodeMismatch
        return _constructor(kind)(**found)

    return decode


@functools.cache
def _constructor(kind: Any) -> Callable[..., Any]:
    try:
        return fast_constructor(kind)
    except TypeError:
        return typing.cast("Callable[..., Any]", kind)


def _decode_float(value: Any) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    raise DecodeMismatch


def _scalar_decoder(kind: Any) -> Decoder:
    def decode(value: Any) -> Any:
        if type(value) is not kind:
            raise DecodeMismatch
        return value

    return decode


def _literal_decoder(values: tuple[Any, ...]) -> Decoder:
    def decode(value: Any) -> Any:
        if value not in values:
            raise DecodeMismatch
        return value

    return decode


def _tuple_decoder(kinds: tuple[Any, ...]) -> Decoder:
    if len(kinds) != 2 or kinds[1] is not Ellipsis:
        return _mismatch
    decode_item = decoder(kinds[0])

    def decode(value: Any) -> Any:
        if type(value) is not list:
            raise DecodeMismatch
        return tuple([decode_item(item) for item in value])

    return decode


def _mapping_decoder(kind: Any) -> Decoder:
    decode_item = decoder(kind)

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise DecodeMismatch
        return {key: decode_item(item) for key, item in value.items()}

    def decode_texts(value: Any) -> Any:
        if type(value) is not dict or not set(map(type, value.values())) <= {str}:
            raise DecodeMismatch
        return dict(value)

    return decode_texts if kind is str else decode


def _union_decoder(options: tuple[Any, ...]) -> Decoder:
    """Unions with at most one plain kind: with two, the order matters, which only `codec` respects."""
    tagged = {
        getattr(option, "__name__", ""): decoder(option) for option in options if dataclasses.is_dataclass(option)
    }
    plain = [option for option in options if not dataclasses.is_dataclass(option) and option is not type(None)]
    if len(plain) > 1:
        return _mismatch
    otherwise = decoder(plain[0]) if plain else _mismatch
    optional = type(None) in options

    def decode(value: Any) -> Any:
        if value is None:
            if not optional:
                raise DecodeMismatch
            return None
        if tagged and type(value) is dict and value.get("type") in tagged:
            return tagged[value["type"]](value)
        return otherwise(value)

    return decode


def _mismatch(_: Any) -> Any:
    raise DecodeMismatch
