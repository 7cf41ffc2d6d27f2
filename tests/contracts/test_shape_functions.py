"""What every table of shape functions must honor, of this package and of others."""

from __future__ import annotations

import inspect
import re

import pytest

pytest.importorskip("torch")

from cotenant.tracing.operators.builtin import OPERATOR_TABLES, all_operators
from cotenant.tracing.operators.registry import OperatorTable

NAME = re.compile(r"\w+::(\w+(\.\w+)?\*?|\*)")  # an operator, a family by its prefix, or a whole namespace
SHAPE, RECORDED = ("ctx", "func", "args", "kwargs"), ("ctx", "func", "args", "kwargs", "out")


@pytest.fixture(params=OPERATOR_TABLES.names())
def table(request):
    return OPERATOR_TABLES.get(request.param)


def parameters(function):
    return tuple(inspect.signature(function).parameters)


def test_a_table_registers_functions(table):
    assert isinstance(table, OperatorTable)
    assert table.shapes or table.sparse_shapes or table.recorders or table.assumptions or table.decomposed


def test_names_are_those_of_schemas(table):
    names = {*table.shapes, *table.sparse_shapes, *table.recorders, *table.assumptions, *table.decomposed}
    assert [name for name in names if not NAME.fullmatch(name)] == []


def test_functions_take_what_the_mode_passes(table):
    for function in (*table.shapes.values(), *table.sparse_shapes.values()):
        assert parameters(function) == SHAPE, function
    assumptions = [function for functions in table.assumptions.values() for function in functions]
    for function in (*table.recorders.values(), *assumptions):
        assert parameters(function) == RECORDED, function


def test_tables_are_merged(table):
    merged = all_operators()
    assert table.shapes.keys() <= merged.shapes.keys()
    assert table.recorders.keys() <= merged.recorders.keys()
    assert table.assumptions.keys() <= merged.assumptions.keys()
