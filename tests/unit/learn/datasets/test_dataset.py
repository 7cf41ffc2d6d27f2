"""Dataset files are read back as written; invalid ones are refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.errors import DatasetError, UsageError
from cotenant.estimators.layer_kinds import LAYER_KINDS
from cotenant.learn.datasets.dataset_files import COLUMNS, read_dataset, write_dataset
from cotenant.learn.datasets.dataset_row import DatasetRow, Layer, layers_from_text, layers_to_text

ROWS = (
    DatasetRow(
        family="cnn",
        config_id="cnn-1",
        status="ok",
        source="measured",
        batch=8,
        layers=(
            Layer(kind="conv", output_shape=(4, 6, 6), parameters=40, name="Conv2d"),
            Layer(kind="other", output_shape=(), parameters=0, name="(not shown)"),
            Layer(kind="linear", output_shape=(3,), parameters=15),
        ),
        group="residual",
        peak_bytes=2**40 + 1,
        capacity_bytes=2**41,
        smact=0.25,
        smocc=0.1,
        drama=0.0,
        extras={"optimizer": "adam", "image": 6, "share": 0.5, "saturated": False},
    ),
    DatasetRow(
        family="cnn",
        config_id='cnn "2", twice',
        status="oom",
        source="published:x",
        batch=1,
        layers=(),
        group="",
        extras={"image": 7, "saturated": True},
    ),
)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_written_data_set_is_read_back(tmp_path, suffix):
    if suffix == "parquet":
        pytest.importorskip("pyarrow", reason="without it no Parquet is written")
    write_dataset(tmp_path, "cnn", ROWS, {})
    assert read_dataset(tmp_path / f"cnn.{suffix}") == ROWS


def test_the_schema_names_every_column(tmp_path):
    table, schema, *_ = write_dataset(tmp_path, "cnn", ROWS, {"from": "a test"}, {"image": ("pixels", "its height")})
    schema_json = json.loads(schema.read_text())
    names = [column["name"] for column in schema_json["columns"]]
    assert table.read_text().splitlines()[0].split(",") == names
    assert names == [*COLUMNS, "optimizer", "image", "share", "saturated"]
    assert (schema_json["rows"], schema_json["statuses"], schema_json["provenance"]) == (
        2,
        {"oom": 1, "ok": 1},
        {"from": "a test"},
    )
    image = next(column for column in schema_json["columns"] if column["name"] == "image")
    assert image == {"name": "image", "type": "int", "unit": "pixels", "meaning": "its height"}
    assert all(
        column["unit"] or column["type"] in ("str", "bool") or column["name"] == "share"
        for column in schema_json["columns"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "mlp"}, "is of family `mlp`, wanted `cnn`"),
        ({"batch": 0}, "batch is 0"),
        ({"extras": {"layers": 3}}, "the extra `layers` has the name of a column"),
        ({"extras": {"image": "seven"}}, "the extra `image` is a str, elsewhere a int"),
    ],
)
def test_invalid_rows_are_not_written(tmp_path, change, message):
    with pytest.raises(DatasetError) as error:
        write_dataset(tmp_path, "cnn", (ROWS[0], dataclasses.replace(ROWS[0], **change)), {})
    assert message in error.value.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(",55,", ",56,", ":2: `parameters` or `activations` do not follow", id="parameters"),
        pytest.param(",147,", ",148,", ":2: `parameters` or `activations` do not follow", id="activations"),
        pytest.param("conv:4x6x6:40", "conv:4x6:40", "do not follow", id="shape"),
        pytest.param("conv:", "convolution:", "is not a layer, wanted `KIND:SHAPE", id="kind"),
        pytest.param(",ok,", ",fine,", ":2: row `cnn-1`: status is `fine`", id="status"),
        pytest.param("measured,8,", "measured,eight,", ":2: invalid literal", id="number"),
        pytest.param(",False", ",no", "`no` is neither `True` nor `False`", id="truth"),
        pytest.param("batch,", "samples,", "no column `batch`", id="column"),
    ],
)
def test_a_changed_table_is_refused(tmp_path, old, new, message):
    table, *_ = write_dataset(tmp_path, "cnn", ROWS, {})
    text = table.read_text()
    assert old in text
    table.write_text(text.replace(old, new, 1))
    with pytest.raises(DatasetError) as error:
        read_dataset(table)
    assert message in error.value.message
    assert str(table) in error.value.message


def test_another_version_or_no_schema_is_refused(tmp_path):
    table, schema, *_ = write_dataset(tmp_path, "cnn", ROWS, {})
    schema.write_text(schema.read_text().replace('"version": 2', '"version": 1'))
    with pytest.raises(DatasetError, match="has version 1, wanted 2"):
        read_dataset(table)
    for text in ("{", "[]", '{"version": 2}', '{"version": 2, "columns": [1]}'):
        schema.write_text(text)
        with pytest.raises(DatasetError, match="is no schema"):
            read_dataset(table)
    schema.unlink()
    with pytest.raises(UsageError, match=r"cannot read `.*cnn\.schema\.json`: no such file"):
        read_dataset(table)


def test_a_damaged_table_is_not_reported_as_its_schema(tmp_path):
    table, schema, *_ = write_dataset(tmp_path, "cnn", ROWS, {})
    written = schema.read_text()
    schema.write_text(written.replace('"type": "bool"', '"type": "truth"', 1))
    with pytest.raises(DatasetError, match=r"cnn\.schema\.json`: the type of `saturated` is `truth`"):
        read_dataset(table)
    schema.write_text(written)
    table.write_bytes(b"\xff\xfe" + table.read_bytes())
    with pytest.raises(DatasetError, match=r"cnn\.csv` is no table: "):
        read_dataset(table)


LAYERS = st.builds(
    Layer,
    kind=st.sampled_from(LAYER_KINDS),
    output_shape=st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    parameters=st.integers(0, 2**50),
    name=st.from_regex(r"[^:;]{0,20}", fullmatch=True),
)


@given(st.lists(LAYERS, max_size=8))
def test_layers_as_text_are_read_back(layers):
    assert layers_from_text(layers_to_text(layers)) == tuple(layers)


@given(st.text(alphabet="conv:x;012-lier ", max_size=40))
def test_any_text_gives_layers_or_an_error(text):
    try:
        found = layers_from_text(text)
    except DatasetError:
        return
    assert layers_from_text(layers_to_text(found)) == found
