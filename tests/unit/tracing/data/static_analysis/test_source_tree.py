"""Small questions about the nodes of a syntax tree."""

from __future__ import annotations

import ast

import pytest

from cotenant.tracing.data.static_analysis.source_tree import (
    FUNCTIONS,
    called_name,
    constant,
    innermost,
    last_name,
    parsed_source,
    spans,
)

NESTED = "def outer():\n    def inner():\n        x = 1\n        return x\n    return inner\n"


def expression(text):
    return ast.parse(text, mode="eval").body


@pytest.mark.parametrize(
    ("text", "called", "last"),
    [
        ("load(x)", "load", ""),
        ("torch.load(x)", "load", ""),
        ("load", "", "load"),
        ("torch.load", "", "load"),
        ("makers[0](x)", "", ""),
        ("1", "", ""),
    ],
)
def test_names_of_functions(text, called, last):
    assert (called_name(expression(text)), last_name(expression(text))) == (called, last)


@pytest.mark.parametrize(
    ("text", "value"), [("7", 7), ("-7", -7), ("-0.5", -0.5), ("'a'", "a"), ("-'a'", None), ("x", None), ("+7", None)]
)
def test_constants(text, value):
    assert constant(expression(text)) == value


@pytest.mark.parametrize(("line", "name"), [(1, "outer"), (2, "inner"), (4, "inner"), (5, "outer"), (6, None)])
def test_the_innermost_function_has_a_line(line, name):
    found = innermost(ast.parse(NESTED), line, FUNCTIONS)
    assert (found and found.name) == name


def test_a_node_is_not_within_itself():
    outer = ast.parse(NESTED).body[0]
    assert innermost(outer, 1, FUNCTIONS) is None
    assert spans(outer, 5)
    assert not spans(outer, 6)


@pytest.mark.parametrize(
    "text", ["def (", "x = '\0'", f"x = {'-' * 100_000}1", None], ids=["no code", "a zero", "too deep", "absent"]
)
def test_what_is_no_source_has_an_empty_tree(tmp_path, text):
    path = tmp_path / "train.py"
    if text is not None:
        path.write_text(text)
    assert parsed_source(str(path)).body == []
