"""What a tracing process that ended without an answer, or with an error, is reported as."""

from __future__ import annotations

import json

import pytest

from cotenant.core.errors import TraceError
from cotenant.tracing.process import serialization
from cotenant.tracing.process.trace_script import _crash_error, _read_answer


def test_a_python_that_is_too_old_is_named_once_and_says_what_to_do():
    error = _crash_error(3, "tracing needs Python 3.10 or newer, this is 3.9\n", on_null_gpu=False)
    assert error.message == "tracing needs Python 3.10 or newer, this is 3.9"
    assert error.hint == "name the job's own Python with `--python`"
    assert not error.log_tail, "it would be printed above the same sentence"


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (serialization.ENDED_WITHOUT_GPU, "by an option? the last line of its output: run prepare.py first"),
        ("the script trains without putting anything on a GPU", "by an option?"),
    ],
)
def test_the_last_line_is_in_the_hint_where_it_may_say_why_nothing_ran(tmp_path, message, hint):
    answer = tmp_path / "answer.json"
    error = TraceError("no-cuda", message, hint="by an option?")
    answer.write_text(json.dumps({"error": serialization.error_to_dict(error)}))
    with pytest.raises(TraceError) as caught:
        _read_answer(answer, "run prepare.py first\n")
    assert caught.value.hint == hint
