"""JSON schemas (draft 2020-12) of types: dataclasses, TypedDicts, literals, unions, lists, mappings and scalars."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

REFERENCE = "#/components/schemas/"
"""Where OpenAPI keeps named schemas."""

_SCALARS = {str: "string", bool: "boolean", int: "integer", float: "number"}
_FIELD = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def schema_of(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    """The schema of `kind`. Dataclasses and TypedDicts go to `components` by name, and are referred to.

    A field is described by the text in `Annotated[kind, "text"]`, or by the `Attributes:` section of a dataclass.

    Raises:
        TypeError: there is no JSON for such a type.
    """
    if kind is Any or kind is object:
        return {}
    if typing.get_origin(kind) is typing.Annotated:
        kind, *texts = typing.get_args(kind)
        return {**schema_of(kind, components), "description": texts[0]}
    if kind is None or kind is type(None):
        return {"type": "null"}
    if kind in _SCALARS:
        return {"type": _SCALARS[kind]}
    if typing.is_typeddict(kind) or dataclasses.is_dataclass(kind):
        name = kind.__name__
        if name not in components:
            components[name] = {}  # a type that contains itself refers to it
            components[name] = _object(kind, components)
        return {"$ref": f"{REFERENCE}{name}"}
    return _generic(kind, components)


def _generic(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(option, components) for option in arguments]}
    if origin is tuple and arguments[-1] is not Ellipsis:
        items = [schema_of(item, components) for item in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if isinstance(origin, type) and issubclass(origin, (list, tuple, Sequence)):
        return {"type": "array", "items": schema_of(arguments[0], components)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1], components)}
    raise TypeError(f"no JSON schema for `{kind}`")


def _object(kind: Any, components: dict[str, Any]) -> dict[str, Any]:
    texts = attribute_texts(kind)
    properties = {
        name: {**schema_of(hint, components), **({"description": texts[name]} if name in texts else {})}
        for name, hint in typing.get_type_hints(kind, include_extras=True).items()
    }
    summary = (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")
    found = {"type": "object", "properties": properties, "required": _required(kind)}
    return {"description": summary, **found} if summary else found


def _required(kind: Any) -> list[str]:
    if typing.is_typeddict(kind):
        return sorted(kind.__required_keys__)
    missing = dataclasses.MISSING
    fields = dataclasses.fields(kind)
    return [field.name for field in fields if field.default is missing and field.default_factory is missing]


def attribute_texts(kind: type) -> dict[str, str]:
    """What the `Attributes:` section of a docstring says of each attribute, in one line each."""
    _, _, section = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    for names, text in _FIELD.findall(section):
        found.update(dict.fromkeys(names.split(", "), " ".join(text.split())))
    return found
