"""Hints about packages, of an error and of the cause that it announces."""

from __future__ import annotations

import pytest

from cotenant.tracing.process.package_hints import environment_hint

NameNotFound = type("NameNotFound", (Exception,), {"__module__": "gymnasium.error"})
FAILED = NameNotFound("Environment `BreakoutNoFrameskip` doesn't exist.")


def announced(text, cause):
    error = RuntimeError(text)
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (FAILED, "`ale-py` has such environments"),
        (announced("Error in call to target 'make_atari':", FAILED), "`ale-py` has such environments"),
        (announced("Error in call to target 'read':", KeyError("RANK")), "does a launcher start it?"),
        (announced("no environment", FAILED), None),
        (announced("Error in call to target 'make':", KeyError("lr")), None),
    ],
)
def test_the_hint_is_about_what_failed_first(error, hint):
    found = environment_hint(error)
    assert found is None if hint is None else hint in found
