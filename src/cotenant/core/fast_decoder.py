"""Decoding for the common case: values that fit. `codec.decode` tries it first and explains what it stumbles over.

A decoder is put together once for each dataclass, so that reading a long journal asks every annotation once and not for
every event. It gives what `codec` gives, or raises: it never gives something else.
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
    """The value does not fit, or takes a closer look to decode."""


def decoder(kind: Any) -> Decoder:
    """What turns plain JSON values into `kind`, a dataclass or any annotation of a field of one.

    It raises something where they do not fit. Kinds that are equal share one: `int | float` is equal to `float | int`
    although the order counts, so both stumble.
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
        if not fields:  # not before the first call, for a dataclass may hold others of its own kind
            hints = typing.get_type_hints(kind)
            fields[:] = [(each.name, decoder(hints[each.name])) for each in dataclasses.fields(kind)]
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
    each = decoder(kinds[0])

    def decode(value: Any) -> Any:
        if type(value) is not list:
            raise DecodeMismatch
        return tuple([each(item) for item in value])

    return decode


def _mapping_decoder(kind: Any) -> Decoder:
    each = decoder(kind)

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise DecodeMismatch
        return {key: each(item) for key, item in value.items()}

    def decode_texts(value: Any) -> Any:
        if type(value) is not dict or not set(map(type, value.values())) <= {str}:
            raise DecodeMismatch
        return dict(value)

    return decode_texts if kind is str else decode


def _union_decoder(options: tuple[Any, ...]) -> Decoder:
    """One plain kind at most: with two, their order counts, and `codec` knows how."""
    tagged = {getattr(each, "__name__", ""): decoder(each) for each in options if dataclasses.is_dataclass(each)}
    plain = [each for each in options if not dataclasses.is_dataclass(each) and each is not type(None)]
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
