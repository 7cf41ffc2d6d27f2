"""What verbs print with `--json` has the shape that docs/reference/json.md promises."""

from __future__ import annotations

from json_shapes import shape_problems


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
        "simulate --forecast": ["simulate", "--forecast", "--json"],
        "learn generate": ["learn", "generate", "mlp-small", "--count", "2", "--json"],
        "estimate --gpu list": ["estimate", "--gpu", "list", "--json"],
        "simulate --list": ["simulate", "--list", "--json"],
        "simulate": ["simulate", "--trace", "t1", "--head", "4", "--bootstrap", "3", "--json"],
    }
    found = {}
    for words, call in calls.items():
        found[words] = shape_problems(words, server.cli(*call).stdout)
    assert {words: wrong for words, wrong in found.items() if wrong} == {}
