"""Estimates of the example scripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import an_estimate
from cotenant.core.errors import TraceError, UsageError
from cotenant.core.units import GiB
from cotenant.demo.examples import estimate_scripts, find_examples
from cotenant.demo.published import MeasuredScript

ROOT = Path(__file__).parents[3]


def a_script(name="a.py", *args, gib=10.0) -> MeasuredScript:
    return MeasuredScript(
        script=name, args=args, measured_bytes=int(gib * GiB), faketensor_bytes=None, source="a publication"
    )


def test_a_script_is_estimated_with_its_arguments():
    requests = []

    def estimating(script, args, gpu):
        requests.append((script, tuple(args), gpu))
        return an_estimate(9)

    (result,) = estimate_scripts([a_script("a.py", "--n", "1")], Path("/x"), gpu="T4", estimating=estimating)
    assert requests == [(Path("/x/a.py"), ("--n", "1"), "T4")]
    assert result.error == pytest.approx(-0.1)
    assert result.problem is None


def test_a_script_that_cannot_be_estimated_does_not_stop_the_others():
    def estimating(script, args, gpu):
        if script.name == "bad.py":
            raise TraceError("raised", "the script raised KeyError")
        return an_estimate(10)

    results = list(estimate_scripts([a_script("bad.py"), a_script("good.py")], Path(), gpu="T4", estimating=estimating))
    assert [result.problem for result in results] == ["the script raised KeyError", None]
    assert [result.error for result in results] == [None, 0.0]


@pytest.mark.parametrize(
    ("bound_gib", "exceeded"),
    [pytest.param(9.9, True, id="needs more"), pytest.param(10, False, id="just fits")],
)
def test_a_bound_that_is_too_low_is_reported(bound_gib, exceeded):
    (result,) = estimate_scripts([a_script()], Path(), gpu="T4", estimating=lambda *_: an_estimate(bound_gib))
    assert result.exceeds_bound is exceeded


def test_examples_are_found_beside_the_sources(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert find_examples() == ROOT / "examples"


def test_a_folder_without_examples_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no example scripts"):
        find_examples(tmp_path)


def test_a_folder_with_examples_is_taken(tmp_path):
    (tmp_path / "resnet50.py").touch()
    assert find_examples(tmp_path) == tmp_path
