"""What a tracing process that ended without an answer is reported as."""

from __future__ import annotations

from cotenant.tracing.process.trace_script import _crash_error


def test_a_python_that_is_too_old_is_named_once_and_says_what_to_do():
    error = _crash_error(3, "tracing needs Python 3.10 or newer, this is 3.9\n", on_null_gpu=False)
    assert error.message == "tracing needs Python 3.10 or newer, this is 3.9"
    assert error.hint == "name the job's own Python with `--python`"
    assert not error.log_tail, "it would be printed above the same sentence"
