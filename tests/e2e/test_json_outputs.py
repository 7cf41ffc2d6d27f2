"""What verbs print with `--json` has the shape that docs/reference/json.md promises."""

from __future__ import annotations

import json

from cotenant.cli.json_outputs import OUTPUTS
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


def test_json_outputs_have_the_documented_shape(server):
    job = str(server.submit("true"))
    server.wait(int(job))
    calls = {
        "submit": ["submit", "--json", "--gpu-mem", "1G", "--hold", "true"],
        "ls": ["ls", "--all", "--json"],
        "show": ["show", job, "--json"],
        "explain": ["explain", job, "--json"],
        "events": ["events", job, "--json"],
        "logs": ["logs", job, "--json"],
        "wait": ["wait", job, "--json"],
        "update": ["update", "2", "--priority", "3", "--json"],
        "release": ["release", "2", "--json"],
        "history": ["history", "--json"],
        "gpus": ["gpus", "--json"],
        "top": ["top", "--json"],
        "daemon status": ["daemon", "status", "--json"],
        "daemon unit": ["daemon", "unit", "--json"],
        "config show": ["config", "show", "--json"],
        "config check": ["config", "check", "--json"],
        "token create": ["token", "create", "--json"],
        "token list": ["token", "list", "--json"],
        "mig plan": ["mig", "plan", "0", "--json"],
        "doctor": ["doctor", "--json"],
        "completion": ["completion", "bash", "--json"],
        "simulate": ["simulate", "--forecast", "--json"],
        "learn generate": ["learn", "generate", "mlp-small", "--count", "2", "--json"],
    }
    found = {}
    for words, call in calls.items():
        done = server.cli(*call)
        body = json.loads(done.stdout)
        assert body["schema"] == 1, words
        found[words] = problems(body, SCHEMAS[words])
    assert {words: wrong for words, wrong in found.items() if wrong} == {}
