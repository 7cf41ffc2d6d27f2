"""`cotenant.estimate` refuses invalid arguments before it runs a script."""

from __future__ import annotations

import pytest

import cotenant
from cotenant.core.errors import UsageError


def step():
    raise AssertionError("was called")


@pytest.mark.parametrize(
    ("target", "given", "message"),
    [
        pytest.param("train.py", {"args": "--batch-size 4"}, "`args` is a string", id="a string"),
        pytest.param("train.py", {"steps": 0}, "must be at least 1, got 0", id="no step"),
        pytest.param(step, {"args": ["4"]}, "called without arguments", id="arguments of a function"),
        pytest.param(step, {"sequence_lengths": "longest"}, "`sequence_lengths` is for scripts", id="sequence_lengths"),
        pytest.param(step, {"synthetic_data": ["3x4"]}, "`synthetic_data` is for scripts", id="stand-ins"),
        pytest.param(step, {"env": {"A": "1"}}, "`env` is for scripts", id="an environment"),
    ],
)
def test_invalid_arguments_are_refused(target, given, message):
    with pytest.raises(UsageError, match=message):
        cotenant.estimate(target, **given)
