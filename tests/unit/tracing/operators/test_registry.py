"""Tables of shape functions: one function per operator, whichever table it is in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from cotenant.core.errors import PluginError
from cotenant.tracing.operators.registry import OperatorTable, overload_names


def operator(name):
    return SimpleNamespace(name=lambda: name)


def a_table(*names, override=False, kind="shape_of"):
    table = OperatorTable()

    @getattr(table, kind)(*names, override=override)
    def function(ctx, func, args, kwargs):
        raise NotImplementedError

    return table, function


def merged(*tables):
    table = OperatorTable()
    for other in tables:
        table.add(other)
    return table


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("shape_of", r"`lib::op` has two shape functions: `.*`"),
        ("sparse_shape_of", r"`lib::op` has two sparse shape functions: `.*`"),
        ("recorder_of", r"`lib::op` has two recorders: `.*`"),
    ],
)
def test_a_second_function_for_an_operator_is_refused(kind, message):
    first, _ = a_table("lib::op", kind=kind)
    second, _ = a_table("lib::other", "lib::op", kind=kind)
    with pytest.raises(PluginError, match=message) as caught:
        merged(first, second)
    assert "override=True" in caught.value.hint


def test_the_same_decorator_twice_is_refused_at_once():
    table, function = a_table("lib::op")
    with pytest.raises(PluginError, match="two shape functions"):
        table.shape_of("lib::op")(function)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["override last", "override first"])
def test_an_override_replaces_whatever_the_order(order):
    tables = [a_table("lib::op"), a_table("lib::op", override=True)]
    table = merged(*(tables[index][0] for index in order))
    assert table.shape(operator("lib::op")) is tables[1][1]


def test_two_overrides_are_refused():
    tables = [a_table("lib::op", override=True)[0] for _ in range(2)]
    with pytest.raises(PluginError, match="two shape functions"):
        merged(*tables)


def test_a_pattern_stands_for_all_names_that_begin_so():
    (every, any_of_all), (adds, any_add), (one, exact) = (
        a_table("lib::_each_*"),
        a_table("lib::_each_add*"),
        a_table("lib::_each_add.Scalar"),
    )
    table = merged(every, adds, one)
    assert table.shape(operator("lib::_each_mul")) is any_of_all
    assert table.shape(operator("lib::_each_add_.List")) is any_add
    assert table.shape(operator("lib::_each_add.Scalar")) is exact
    assert table.shape(operator("lib::each_mul")) is None


def test_assumptions_of_several_tables_all_apply_in_order():
    tables = [OperatorTable(), OperatorTable()]
    functions = [table.assumption_for("lib::op")(lambda *args: None) for table in tables]
    assert merged(*tables).assumptions == {"lib::op": tuple(functions)}


def test_decomposed_operators_are_joined():
    tables = [OperatorTable(), OperatorTable()]
    for table, name in zip(tables, ("lib::a", "lib::b"), strict=True):
        table.decompose(name)
    assert merged(*tables).decomposed == {"lib::a", "lib::b"}


def test_overloads_of_an_operator():
    assert {"aten::add.Tensor", "aten::add.out"} <= set(overload_names("aten::add"))
    assert overload_names("aten::relu")[0] == "aten::relu"
    rand = pytest.importorskip("torch").ops.aten.rand
    assert overload_names("aten::rand") == tuple(getattr(rand, overload).name() for overload in rand.overloads())
