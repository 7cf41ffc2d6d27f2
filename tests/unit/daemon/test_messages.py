"""Answers to those who asked the loop."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from cotenant.core.errors import UsageError
from cotenant.daemon.messages import resolve


def fails(error: Exception):
    raise error


def test_the_answer_is_what_the_work_returns():
    answer: Future[int] = Future()
    resolve(answer, lambda: 7)
    assert answer.result(timeout=0) == 7


def test_a_refusal_is_the_answer():
    answer: Future[int] = Future()
    resolve(answer, lambda: fails(UsageError("no")))
    with pytest.raises(UsageError, match="no"):
        answer.result(timeout=0)


def test_what_is_no_refusal_is_for_the_caller():
    answer: Future[int] = Future()
    with pytest.raises(KeyError):
        resolve(answer, lambda: fails(KeyError("lost")))
    assert not answer.done()


def test_any_error_is_a_refusal_where_that_is_said():
    answer: Future[int] = Future()
    resolve(answer, lambda: fails(KeyError("lost")), expected=Exception)
    assert isinstance(answer.exception(timeout=0), KeyError)


def test_nothing_is_done_for_who_has_gone():
    answer: Future[int] = Future()
    answer.cancel()
    resolve(answer, lambda: fails(AssertionError("worked")))
    assert answer.cancelled()
