"""Replacements take arguments by the names that the replaced function has for them."""

from __future__ import annotations

import functools
import sys
import types

import pytest

from cotenant.tracing.patches.keyword_names import with_names_of
from cotenant.tracing.patches.registry import Patch, PatchTable, Phase


def read(fname, mode="r"):
    return f"{fname}, {mode}"


class Reader:
    def __init__(self, fname):
        self.fname = fname


def wrapper_of(original):
    @functools.wraps(original)
    def call(path, *args, **kwargs):
        return "wrapped", original(path, *args, **kwargs)

    return call


@pytest.mark.parametrize(
    ("args", "named"),
    [
        pytest.param(("a",), {}, id="by position"),
        pytest.param((), {"fname": "a"}, id="by the replaced function's name"),
        pytest.param((), {"path": "a"}, id="by our own"),
    ],
)
def test_a_wrapper_is_called_by_either_name(args, named):
    assert with_names_of(read, wrapper_of(read))(*args, **named, mode="w") == ("wrapped", "a, w")


def test_names_go_through_a_wrapper_to_the_function_itself():
    once = with_names_of(read, wrapper_of(read))
    twice = with_names_of(once, wrapper_of(once))
    assert twice(fname="a") == ("wrapped", ("wrapped", "a, r"))


def test_a_class_is_called_by_the_names_of_its_construction():
    new = with_names_of(Reader, lambda path: path)
    assert new(fname="a") == "a"


def test_a_function_in_c_is_called_by_the_names_that_it_says():
    assert with_names_of(round, lambda value, digits: (value, digits))(number=1, ndigits=2) == (1, 2)


def test_a_static_method_stays_one():
    new = with_names_of(read, staticmethod(lambda path: path))
    assert isinstance(new, staticmethod)
    assert new.__func__(fname="a") == "a"


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(lambda fname, mode: None, id="same names"),
        pytest.param(lambda *args, **kwargs: None, id="any names"),
        pytest.param(staticmethod(lambda fname: None), id="a static method"),
        pytest.param(7, id="no function"),
    ],
)
def test_what_needs_no_other_name_stays_as_it_is(new):
    assert with_names_of(read, new) is new


@pytest.mark.parametrize("present", [None, 7, {}.get, print, type("Plain", (), {}), lambda fname, /: None])
def test_a_replaced_thing_without_names_changes_nothing(present):
    def new(path):
        return path

    assert with_names_of(present, new) is new


def test_names_that_we_give_to_other_parameters_stay_ours():
    def swapped(mode, fname):
        return mode, fname

    assert with_names_of(read, swapped) is swapped


def test_parameters_by_position_alone_keep_their_names():
    def by_position(path, /, **kwargs):
        return path, kwargs

    assert with_names_of(read, by_position)("a", fname="b") == ("a", {"fname": "b"})


@pytest.mark.parametrize(("name", "takes_it"), [("read", True), ("__init__", True), ("__getitem__", False)])
def test_a_patch_takes_the_names_unless_an_operator_calls_it(monkeypatch, name, takes_it):
    module = types.ModuleType("named_library")
    module.Library = type("Library", (), {name: lambda self, key: key})
    monkeypatch.setitem(sys.modules, "named_library", module)

    def new(self, item):
        return item

    PatchTable(
        [Patch(target=f"named_library:Library.{name}", replacement=new, phase=Phase.DATA, reason="a test")]
    ).apply()
    assert (vars(module.Library)[name] is not new) == takes_it
