"""Compares what a verb prints with `--json` with the schema that docs/reference/json.md promises."""

from __future__ import annotations

import json

from cotenant.cli.schemas.json_outputs import OUTPUTS
from cotenant.core.json_schema import schema_of

COMPONENTS = {}
SCHEMAS = {words: schema_of(kind, COMPONENTS) for words, kind in OUTPUTS.items()}
KINDS = {
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
    "array": list,
    "object": dict,
}


def problems(value, schema, place="$"):
    """Where `value` is not as `schema` says; fields that the schema does not name count too."""
    if "$ref" in schema:
        return problems(value, COMPONENTS[schema["$ref"].rpartition("/")[2]], place)
    if "anyOf" in schema:
        found = [problems(value, option, place) for option in schema["anyOf"]]
        return min(found, key=len)
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{place}: {value!r} is not one of {schema['enum']}"]
    kind = schema.get("type")
    if kind is None:
        return []
    if not isinstance(value, KINDS[kind]) or (kind in ("integer", "number") and isinstance(value, bool)):
        return [f"{place}: {value!r} is no {kind}"]
    if kind == "array":
        return [
            problem
            for i, item in enumerate(value)
            for problem in problems(item, schema.get("items", {}), f"{place}[{i}]")
        ]
    if kind != "object":
        return []
    named = schema.get("properties")
    if named is None:
        rest = schema.get("additionalProperties", {})
        return [problem for key, item in value.items() for problem in problems(item, rest, f"{place}.{key}")]
    missing = [f"{place}: no field `{key}`" for key in schema["required"] if key not in value]
    foreign = [f"{place}: unknown field `{key}`" for key in value if key not in named and key != "schema"]
    return (
        missing
        + foreign
        + [problem for key in named if key in value for problem in problems(value[key], named[key], f"{place}.{key}")]
    )


def shape_problems(words, text):
    """Where the JSON `text` that the verb `words` printed is not as its schema says."""
    body = json.loads(text)
    return problems(body, SCHEMAS[words]) + ([] if body["schema"] == 1 else [f"schema {body['schema']}"])
