"""Conditions on what an iteration of a loop leaves for the next one."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.training.state_conditions import set_later

SCRIPT = """
for task in tasks:
    for batch in task:
        if {condition}:
            distill()
        train()
    {behind}
"""


class Off:
    """A class of a script, whose methods are not called to look at it."""

    def __bool__(self):
        return False


def later(condition, behind, **names):
    outer = ast.parse(SCRIPT.format(condition=condition, behind=behind)).body[0]
    inner = outer.body[0]
    return [ast.unparse(found.test) for found in set_later(inner, names, outer, line=6)]


@pytest.mark.parametrize(
    ("condition", "behind", "value"),
    [
        pytest.param("old", "old = copy(model)", None, id="None"),
        pytest.param("old is not None", "old = copy(model)", None, id="not None"),
        pytest.param("made", "made.append(1)", [], id="an empty list that is filled"),
        pytest.param("made", "made |= {1}", set(), id="an empty set that is set anew"),
        pytest.param("made", "made = True", False, id="a flag"),
        pytest.param("made", "made += 1", 0, id="a number"),
        pytest.param("made and step > 1", "made = 1", 0, id="one of two"),
        pytest.param("step > 1 and (made is not None)", "made = 1", None, id="the other of two"),
    ],
)
def test_a_condition_that_the_rest_of_the_loop_makes_true_is_found(condition, behind, value):
    name = "old" if "old" in condition else "made"
    assert len(later(condition, behind, **{name: value})) == 1


@pytest.mark.parametrize(
    ("condition", "behind", "value"),
    [
        pytest.param("made", "made.append(1)", [1], id="true already"),
        pytest.param("made", "print(made)", None, id="not set"),
        pytest.param("made", "other = 1", None, id="another name is set"),
        pytest.param("made is None", "made = 1", None, id="true while it is None"),
        pytest.param("not made", "made = 1", None, id="true while it is false"),
        pytest.param("made or ready", "made = 1", None, id="either of two"),
        pytest.param("made == 3", "made = 3", None, id="compared with something"),
        pytest.param("made", "made.remove(1)", [], id="a method that does not fill it"),
        pytest.param("made is not other", "made = 1", None, id="compared with another object"),
        pytest.param("made", "made = 1", Off(), id="an object with a truth of its own"),
    ],
)
def test_other_conditions_are_not(condition, behind, value):
    assert later(condition, behind, made=value) == []


def test_a_name_that_each_iteration_sets_before_the_training_is_its_own():
    outer = ast.parse("for task in tasks:\n    old = None\n    if old: distill()\n    train()\n    old = 1").body[0]
    assert list(set_later(outer, {"old": None}, outer, line=4)) == []
    assert len(list(set_later(outer, {"old": None}, outer, line=1))) == 1


def test_what_the_line_that_trains_sets_is_set_after_the_training():
    inner = ast.parse("def train(old):\n    if old is not None: distill()").body[0]
    outer = ast.parse("for task in tasks:\n    old = train(old)").body[0]
    assert len(list(set_later(inner, {"old": None}, outer, line=2))) == 1
    assert list(set_later(inner, {"old": None}, outer, line=3)) == []


def test_a_name_that_the_frame_does_not_have_is_not_known():
    assert later("made", "made = 1") == []
    assert later("self.made", "self.made = 1", self=SimpleNamespace(made=None)) == ["self.made"]
