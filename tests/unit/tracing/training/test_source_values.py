"""Values of names and attributes are looked up in a script's objects without running its code."""

from __future__ import annotations

import ast
from types import SimpleNamespace

import pytest

from cotenant.tracing.training.source_values import value_of


class Answering:
    """An object whose attributes its own code makes."""

    def __getattr__(self, name):
        raise AssertionError(name)


NAMES = {
    "module": SimpleNamespace(_modules={"head": "a head"}, width=8),
    "lazy": SimpleNamespace(_modules={"modeling_t5", "modeling_bert"}, found="a class"),
    "settings": {"every": 10, 3: "three"},
    "answering": Answering(),
    "number": 5,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("number", 5, id="a name"),
        pytest.param("module.width", 8, id="an attribute"),
        pytest.param("module.head", "a head", id="a submodule"),
        pytest.param("lazy.found", "a class", id="of a package that has a set of modules"),
        pytest.param("lazy.modeling_t5", None, id="a module of that set"),
        pytest.param("settings['every']", 10, id="an entry"),
        pytest.param("settings[3]", "three", id="an entry by a number"),
        pytest.param("settings[number]", None, id="an entry by a name"),
        pytest.param("answering.width", None, id="what code would make"),
        pytest.param("other.width", None, id="an unknown name"),
    ],
)
def test_a_value_is_found_without_running_code(text, value):
    assert value_of(ast.parse(text, mode="eval").body, NAMES) == value
