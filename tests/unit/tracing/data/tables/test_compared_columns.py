"""Texts that a script compares a column of a table with."""

from __future__ import annotations

import pytest

from cotenant.tracing.data.tables.compared_columns import compared_texts


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        pytest.param('table[table["use"] == "train"]\ntable[table["use"] == "val"]', ("train", "val"), id="subscript"),
        pytest.param('table[table.use != "val"]', ("val", "other"), id="attribute, and not the one text"),
        pytest.param('table[table.use.isin(["train", "val"])]', ("train", "val"), id="isin"),
        pytest.param('table.loc["train" == table.loc[:, "use"]]', ("train", "other"), id="loc, on the right"),
        pytest.param('table[table["fold"] == "train"]\ntable[table["use"] == 1]', (), id="another column, a number"),
        pytest.param('table["use"].map({"train": 1})\nname == "train"', (), id="not compared"),
    ],
)
def test_texts_that_a_column_is_compared_with(tmp_path, source, texts):
    (tmp_path / "reader.py").write_text(source)
    assert compared_texts(str(tmp_path / "reader.py"), "use") == texts
