"""A forged answer of an estimator process is refused where it enters, with a message."""

from __future__ import annotations

import json
import math

import pytest

from cotenant.core.codec import encode, to_json
from cotenant.core.estimate import Estimate, GpuEstimate, MemoryProfile
from cotenant.daemon.estimation.answer import MAX_ERROR_CHARS, parse_answer

HONEST = Estimate(
    peak_allocated_bytes=5,
    peak_reserved_bytes=10,
    context_bytes=3,
    margin_bytes=1,
    coverage=0.99,
    estimator="traced",
    version="1",
    gpu="A100-40GB",
    breakdown_bytes={"parameters": 5},
    warnings=("w",),
    per_gpu=(GpuEstimate(index=0, peak_allocated_bytes=1, peak_reserved_bytes=2, device_bytes=3, bound_bytes=4),),
    smact=0.5,
)


PROFILE = MemoryProfile(category_bytes={"parameter": (5, 5), "activation": (0, 9)}, phases=((0, "load"), (1, "step")))


def test_an_honest_profile_is_taken_as_it_is():
    answer = json.dumps({"estimate": encode(HONEST), "profile": encode(PROFILE)}).encode()
    assert parse_answer(answer) == (HONEST, None, False, PROFILE)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"category_bytes": {"a": [1], "b": [1, 2]}}, id="columns of other lengths"),
        pytest.param({"category_bytes": {"a": [-1]}}, id="negative"),
        pytest.param({"category_bytes": {"a": [1.5]}}, id="a fraction"),
        pytest.param({"category_bytes": {"a": [10**4000]}}, id="huge"),
        pytest.param({"category_bytes": {"a": [1] * 501}}, id="too many points"),
        pytest.param({"category_bytes": {str(i): [1] for i in range(21)}}, id="too many categories"),
        pytest.param({"category_bytes": {"a" * 101: [1]}}, id="a long name"),
        pytest.param({"phases": [[1, "b"], [0, "a"]]}, id="phases that go back"),
        pytest.param({"phases": [[0, "a"], [0, "b"]]}, id="two phases at once"),
        pytest.param({"phases": [[2**60, "a"]]}, id="a phase beyond the end"),
        pytest.param({"phases": [["0", "a"]]}, id="a text for a number"),
        pytest.param({"phases": None}, id="null"),
    ],
)
def test_a_profile_that_cannot_be_drawn_is_refused(changes):
    answer = json.dumps({"estimate": encode(HONEST), "profile": {**encode(PROFILE), **changes}}).encode()
    found = parse_answer(answer)
    assert found.estimate is None
    assert "the estimator's answer is refused" in found.error


def forged(**changes):
    return json.dumps({"estimate": {**encode(HONEST), **changes}}).encode()


def test_an_honest_answer_is_taken_as_it_is():
    assert parse_answer(forged()) == (HONEST, None, False, None)


GPU = encode(HONEST)["per_gpu"][0]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({"peak_reserved_bytes": 10**4000}, "`peak_reserved_bytes` is a number of 13288 bits", id="huge"),
        pytest.param({"peak_reserved_bytes": 2**50}, "wanted 0 to 2**50 bytes", id="a pebibyte"),
        pytest.param({"peak_reserved_bytes": -1}, "`peak_reserved_bytes` is -1", id="negative"),
        pytest.param({"peak_reserved_bytes": 1.5}, "wanted int", id="fraction"),
        pytest.param({"peak_reserved_bytes": True}, "wanted int", id="boolean"),
        pytest.param({"peak_reserved_bytes": "1"}, "wanted int", id="text"),
        pytest.param({"peak_reserved_bytes": None}, "wanted", id="null"),
        pytest.param({"peak_allocated_bytes": -1}, "`peak_allocated_bytes` is -1", id="allocated"),
        pytest.param({"context_bytes": -1}, "`context_bytes` is -1", id="context"),
        pytest.param({"margin_bytes": -1}, "`margin_bytes` is -1", id="margin"),
        pytest.param({"coverage": math.nan}, "`coverage` is nan, wanted 0 to 1", id="NaN"),
        pytest.param({"coverage": math.inf}, "`coverage` is inf", id="infinite"),
        pytest.param({"coverage": 1.01}, "`coverage` is 1.01", id="above 1"),
        pytest.param({"coverage": 10**4000}, "int too large to convert to float", id="no float"),
        pytest.param({"smact": -0.1}, "`smact` is -0.1", id="SMACT"),
        pytest.param({"smocc": math.nan}, "`smocc` is nan", id="SMOCC"),
        pytest.param({"processes": 0}, "`processes` is 0", id="no process"),
        pytest.param({"processes": 10**30}, "`processes` is a number of", id="processes"),
        pytest.param({"breakdown_bytes": {"x": -5}}, "`breakdown_bytes.x` is -5", id="breakdown"),
        pytest.param({"breakdown_bytes": {str(i): 0 for i in range(1001)}}, "has 1001 items", id="many categories"),
        pytest.param({"warnings": ["w"] * 1001}, "`warnings` has 1001 items", id="many warnings"),
        pytest.param({"warnings": ["w" * 10_001]}, "more than 10000 characters", id="long warning"),
        pytest.param({"estimator": "e" * 10_001}, "more than 10000 characters", id="long name"),
        pytest.param({"per_gpu": [{**GPU, "index": -1}]}, "`per_gpu.index` is -1", id="index"),
        pytest.param({"per_gpu": [{**GPU, "bound_bytes": 2**60}]}, "`per_gpu.bound_bytes` is", id="bound of a GPU"),
        pytest.param({"per_gpu": 7}, "wanted an array", id="no array"),
        pytest.param({"unknown": 1}, "unknown fields: unknown", id="unknown field"),
    ],
)
def test_a_forged_value_is_refused_by_name(changes, why):
    estimate, error, *_ = parse_answer(forged(**changes))
    assert estimate is None
    assert error.startswith("the estimator's answer is refused: ")
    assert why in error
    assert len(error) <= MAX_ERROR_CHARS


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b'{"estimate": {"peak_reserved_bytes": ' + b"9" * 5000 + b"}}", id="digits that Python refuses"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"\xff\xfe", id="no UTF-8"),
        pytest.param(b"3", id="a number"),
        pytest.param(b'"estimate"', id="a text"),
        pytest.param(b'{"error": 7}', id="an error that is none"),
    ],
)
def test_an_answer_that_is_no_message_is_refused(answer):
    estimate, error, *_ = parse_answer(answer)
    assert estimate is None
    assert error.startswith("the estimator's answer is refused: ")


def test_a_long_error_is_cut_to_what_the_journal_should_hold():
    _, error, *_ = parse_answer(json.dumps({"error": {"message": "m" * 10**6}}).encode())
    assert error == "m" * MAX_ERROR_CHARS


def test_accepted_answers_can_be_journaled():
    extreme = {"peak_reserved_bytes": 2**50 - 1, "coverage": 1, "processes": 1024, "warnings": ["w" * 10_000]}
    estimate, error, *_ = parse_answer(forged(**extreme))
    assert error is None
    assert json.loads(to_json(estimate))["peak_reserved_bytes"] == 2**50 - 1


@pytest.mark.parametrize(("kind", "is_fatal"), [("import", True), ("raised", False), (None, False), ([], False)])
def test_a_failed_import_is_fatal(kind, is_fatal):
    answer = json.dumps({"error": {"kind": kind, "message": "m"}}).encode()
    assert parse_answer(answer) == (None, "m", is_fatal, None)
