"""Errors as those see them who call us from Python."""

from __future__ import annotations

import pickle
import sys
import traceback

import pytest

from cotenant.core.errors import UsageError


@pytest.mark.skipif(sys.version_info < (3, 11), reason="notes of exceptions came with Python 3.11")
def test_a_traceback_shows_the_hint():
    error = pickle.loads(pickle.dumps(UsageError("no script `x`", hint="check the path")))
    assert traceback.format_exception_only(error) == [
        "cotenant.core.errors.UsageError: no script `x`\n",
        "hint: check the path\n",
    ]
    assert traceback.format_exception_only(UsageError("no script")) == ["cotenant.core.errors.UsageError: no script\n"]
