"""The built-in tables name operators of the installed torch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from cotenant.tracing.operators import fast_paths  # noqa: E402 - torch may be absent
from cotenant.tracing.operators.builtin import OPERATOR_TABLES  # noqa: E402


def exists(name):
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return hasattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default")


@pytest.mark.parametrize("table_name", OPERATOR_TABLES.builtin_names)
def test_every_aten_operator_is_one_of_this_torch(table_name):
    """A name with a typing error would never be looked up, and its function never called."""
    table = OPERATOR_TABLES.get(table_name)
    names = {*table.shapes, *table.sparse_shapes, *table.recorders, *table.assumptions, *table.decomposed}
    aten = [name for name in names if name.startswith("aten::") and not name.endswith("*")]
    assert [name for name in aten if not exists(name)] == []


def test_every_factory_is_an_operator():
    assert [name for name in fast_paths.FACTORIES if not hasattr(torch.ops.aten, name)] == []
